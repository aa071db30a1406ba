"""Read agent definitions and prompts from files or standard input."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from agentops.http import strict_json
from agentops.projects.management.base import EXIT_INVALID, EXIT_UNREADABLE
from runs.fixtures.text_files import FixtureError, read_bytes
from timeline.redaction.redact import BARE

STDIN = "-"
MAX_STDIN = 1024 * 1024


def clean_argument(text: str) -> str:
    """Return an argument without lone surrogates, which stand for invalid UTF-8 and cannot be stored."""
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
    """Return a definition in TOML or JSON, by the suffix of the file, otherwise by its first character."""
    text = read_text(name)
    is_json = name.endswith(".json") or (not name.endswith(".toml") and text.lstrip()[:1] in {"{", ""})
    try:
        definition = strict_json.parse(text) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise CommandError(f"{name}: not {'JSON' if is_json else 'TOML'}: {reason}", returncode=EXIT_INVALID) from None
    if not isinstance(definition, dict):
        raise CommandError(f"{name}: $: a definition must be an object", returncode=EXIT_INVALID)
    return definition


def json_path(pointer: str, document: Any) -> str:
    """Convert a JSON pointer to a JSON path: `/tools/0` to `$.tools[0]`."""
    path = "$"
    for step in (part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]):
        if isinstance(document, list):
            path, document = f"{path}[{step}]", document[int(step)]
        else:
            path, document = f"{path}.{step}", document.get(step) if isinstance(document, Mapping) else None
    return path


def unusable(error: FixtureError, name: str) -> CommandError:
    """Return the error for an unusable file; a JSON path in it follows the file name."""
    code = EXIT_INVALID if error.code == "fixture_invalid" else EXIT_UNREADABLE
    return CommandError(f"{name}: {error}" if error.path.startswith("$") else str(error), returncode=code)


def _stdin() -> bytes:
    data = sys.stdin.buffer.read(MAX_STDIN + 1)
    if len(data) > MAX_STDIN:
        raise FixtureError("too_large", "standard input", f"larger than {MAX_STDIN} bytes")
    return data
