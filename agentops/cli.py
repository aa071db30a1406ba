"""The console script: every subcommand is a management command."""

from __future__ import annotations

import gc
import os
import sys

EXIT_BAD_SETTINGS = 78  # EX_CONFIG of sysexits.h
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
#: Aliases of commands. `import` is a Python keyword, so no module can have this name.
ALIASES = {"import": "import_run"}


def main() -> None:
    """Run the command in `sys.argv`. Invalid settings end it with exit code 78."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
    try:
        if not _print_without_settings(sys.argv[1:]):
            _run()
    except KeyboardInterrupt:
        # Also during loading, where a traceback would look like a bug.
        raise SystemExit(EXIT_INTERRUPTED) from None
    finally:
        # The last garbage collection runs after extension modules are unloaded. Freeing an object of pydantic-core then
        # causes a segmentation fault, so objects are frozen before.
        gc.freeze()


def _print_without_settings(arguments: list[str]) -> bool:
    """Print the overview or the version, if that is all that is requested."""
    if arguments not in ([], ["help"], ["--help"], ["-h"], ["--version"]):
        return False
    from agentops.accounts.management import overview

    print(overview.version_line() if arguments == ["--version"] else overview.text())
    return True


def _run() -> None:
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv[:1] + [ALIASES.get(name, name) for name in sys.argv[1:2]] + sys.argv[2:])
    except ImproperlyConfigured as error:
        print(f"agentops: invalid setting: {error}", file=sys.stderr)
        raise SystemExit(EXIT_BAD_SETTINGS) from None
