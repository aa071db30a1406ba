"""The console script: every subcommand is a management command, `agentops worker` included."""

from __future__ import annotations

import gc
import os
import sys

EXIT_BAD_SETTINGS = 78  # EX_CONFIG of sysexits.h
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it


def main() -> None:
    """Run the command in `sys.argv`; settings that cannot be read end it with exit code 78."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
    try:
        if not _answered_without_settings(sys.argv[1:]):
            _run()
    except KeyboardInterrupt:
        # Also while everything is still being loaded: a traceback would look like a fault.
        raise SystemExit(EXIT_INTERRUPTED) from None
    finally:
        # The interpreter's last collection comes when extension modules are gone already, and an object of
        # pydantic-core's that is freed then ends the process with a segmentation fault. Frozen, it is left alone.
        gc.freeze()


def _answered_without_settings(arguments: list[str]) -> bool:
    """Print the overview or the version, where that is all that is wanted."""
    if arguments not in ([], ["help"], ["--help"], ["-h"], ["--version"]):
        return False
    from agentops.projects.management import overview

    print(overview.version_line() if arguments == ["--version"] else overview.text())
    return True


def _run() -> None:
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        print(f"agentops: bad settings: {error}", file=sys.stderr)
        raise SystemExit(EXIT_BAD_SETTINGS) from None
