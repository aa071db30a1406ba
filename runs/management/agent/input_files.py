"""Read agent definitions and prompts from files or standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from agentops.accounts.management.base import EXIT_INVALID, EXIT_UNREADABLE
from agentops.base.redaction.redact import BARE
from runs.agents import definition_text
from runs.fixtures.text_files import FixtureError, read_bytes

STDIN = "-"
MAX_STDIN = 1024 * 1024


def clean_argument(text: str) -> str:
    """Return an argument without lone surrogates, which represent invalid UTF-8 and cannot be stored."""
    return BARE.clean_text(text)[0]


def read_text(name: str) -> str:
    """Return the text of a file, or of standard input for `-`."""
    try:
        return (_stdin() if name == STDIN else read_bytes(Path(name))).decode()
    except FixtureError as error:
        raise unusable(error, name) from error
    except UnicodeDecodeError:
        raise CommandError(f"{name}: not UTF-8 text", returncode=EXIT_INVALID) from None


def read_definition(name: str) -> dict[str, Any]:
    """Return a definition in TOML or JSON, detected by the suffix of the file or by its first character."""
    try:
        return definition_text.parse(read_text(name), suffix=Path(name).suffix)
    except definition_text.NotADefinition as error:
        raise CommandError(f"{name}: {error}", returncode=EXIT_INVALID) from None


def unusable(error: FixtureError, name: str) -> CommandError:
    """Return the error for an unusable file; a JSON path in it follows the file name."""
    code = EXIT_INVALID if error.code == "fixture_invalid" else EXIT_UNREADABLE
    return CommandError(f"{name}: {error}" if error.path.startswith("$") else str(error), returncode=code)


def _stdin() -> bytes:
    data = sys.stdin.buffer.read(MAX_STDIN + 1)
    if len(data) > MAX_STDIN:
        raise FixtureError("too_large", "standard input", f"larger than {MAX_STDIN} bytes")
    return data
