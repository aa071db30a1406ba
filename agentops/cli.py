"""The console script: every subcommand is a management command, `agentops worker` included.

May import Django only: settings are not loaded when this module is.
"""

from __future__ import annotations

import os
import sys

EXIT_BAD_SETTINGS = 78  # EX_CONFIG of sysexits.h
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it


def main() -> None:
    """Run the command in `sys.argv`; settings that cannot be read end it with exit code 78."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
    try:
        _run()
    except KeyboardInterrupt:
        # Also while everything is still being loaded: a traceback would look like a fault.
        raise SystemExit(EXIT_INTERRUPTED) from None


def _run() -> None:
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        print(f"agentops: bad settings: {error}", file=sys.stderr)
        raise SystemExit(EXIT_BAD_SETTINGS) from None
