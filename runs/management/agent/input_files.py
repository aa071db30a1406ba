"""What the commands read: agent definitions and prompts, from files or from standard input."""

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


def legible(text: str) -> str:
    """An argument without what no database can store: bytes that are no UTF-8 arrive as halves of surrogate pairs."""
    return BARE.clean_text(text)[0]


def read_text(name: str) -> str:
    """A file's text, or standard input's for `-`."""
    try:
        return (_stdin() if name == STDIN else read_bytes(Path(name))).decode()
    except FixtureError as error:
        raise unusable(error, name) from error
    except UnicodeDecodeError:
        raise CommandError(f"{name}: not UTF-8 text", returncode=EXIT_INVALID) from None


def read_definition(name: str) -> dict[str, Any]:
    """A definition in TOML or JSON: as the file's name says, else as it begins."""
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
    """A JSON pointer as the JSON path that people read: `/tools/0` as `$.tools[0]`."""
    path = "$"
    for step in (part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]):
        if isinstance(document, list):
            path, document = f"{path}[{step}]", document[int(step)]
        else:
            path, document = f"{path}.{step}", document.get(step) if isinstance(document, Mapping) else None
    return path


def unusable(error: FixtureError, name: str) -> CommandError:
    """What a file that cannot be used ends a command with; a place inside of it is named after the file."""
    code = EXIT_INVALID if error.code == "fixture_invalid" else EXIT_UNREADABLE
    return CommandError(f"{name}: {error}" if error.path.startswith("$") else str(error), returncode=code)


def _stdin() -> bytes:
    data = sys.stdin.buffer.read(MAX_STDIN + 1)
    if len(data) > MAX_STDIN:
        raise FixtureError("too_large", "standard input", f"larger than {MAX_STDIN} bytes")
    return data
