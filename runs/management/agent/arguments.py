"""The arguments of commands: argparse types, options of several commands, and contents of files or standard input."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from agentops.accounts.command_base import EXIT_INVALID, EXIT_UNREADABLE, printable
from agentops.base.http import strict_json
from agentops.base.redaction.redact import BARE
from runs.fixtures.text_files import FixtureError, read_bytes
from runs.lifecycle.title_limits import MAX_LABEL, MAX_TITLE

#: Maximum rows of a list.
MAX_ROWS = 1000
#: The file name that stands for standard input.
STDIN = "-"
MAX_STDIN = 1024 * 1024


# --- Types of argparse ---


def whole(text: str) -> int:
    # int() also accepts "1_000", " 12 " and digits of other scripts. The action checks the range.
    if not re.fullmatch(r"-?[0-9]{1,10}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a whole number")
    return int(text)


def seq(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not the sequence number of an event")
    return int(text)


def whole_up_to(maximum: int) -> Callable[[str], int]:
    """Return the type of whole numbers from 1 to `maximum`."""

    def parse(text: str) -> int:
        number = whole(text)
        if not 1 <= number <= maximum:
            raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a number from 1 to {maximum}")
        return number

    return parse


def seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,3})?", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a number of seconds")
    return float(text)


def title(text: str) -> str:
    if len(text) > MAX_TITLE:
        raise argparse.ArgumentTypeError(f"a title must have at most {MAX_TITLE} characters")
    return printable(clean_argument(text)).strip()


def label(text: str) -> str:
    label = printable(clean_argument(text)).strip()
    if not label or len(label) > MAX_LABEL:
        raise argparse.ArgumentTypeError(f"a label must have 1 to {MAX_LABEL} characters")
    return label


# --- Options of several commands ---


def add_json(parser: CommandParser, text: str = "print JSON") -> None:
    parser.add_argument("--json", action="store_true", help=text)


def add_limit(parser: CommandParser, default: int | None, text: str) -> None:
    """Add `--limit`, the number of rows of a list."""
    parser.add_argument("--limit", metavar="N", type=whole_up_to(MAX_ROWS), default=default, help=text)


def add_prompt(parser: CommandParser) -> None:
    """Add `--prompt` and `--prompt-file`, the first message of a run."""
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument(
        "--prompt", metavar="TEXT", type=clean_argument, help="first message (default: from the recording)"
    )
    prompt.add_argument("--prompt-file", metavar="F", help=f"file with the first message; {STDIN} reads standard input")


def add_json_or_file(parser: CommandParser, name: str, text: str) -> None:
    """Add the options `--<name>` and `--<name>-file`, which `json_object_of` reads."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(f"--{name}", metavar="JSON", type=clean_argument, help=text)
    group.add_argument(f"--{name}-file", metavar="F", help=f"the same from a file; {STDIN} reads standard input")


def add_tail(parser: CommandParser) -> None:
    """Add the options of a command that prints events."""
    parser.add_argument("--after", metavar="SEQ", type=seq, default=0, help="only events after this sequence number")
    parser.add_argument("--no-follow", dest="follow", action="store_false", help="exit after the stored events")
    add_json(parser, "print JSON, one event per line")


# --- Contents ---


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
    """Return the definition of an agent or a flow in a TOML or JSON file.

    The suffix of the file decides about the format, or else the first character of its text.
    """
    # Imported here, so that a parser loads without the model library.
    from runs.agents import definition

    try:
        return definition.parse_definition(read_text(name), suffix=Path(name).suffix)
    except definition.NotADefinition as error:
        raise CommandError(f"{name}: {error}", returncode=EXIT_INVALID) from None


def json_object_of(options: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the JSON object of the option `name`, or of the file in `<name>_file`. None without either."""
    file = options[f"{name}_file"]
    text = options[name] if file is None else read_text(file)
    return None if text is None else parse_object(text, file or f"--{name}")


def parse_object(text: str, name: str) -> dict[str, Any]:
    """Return the JSON object in a text. `name` is the option or file in the error. Raises `CommandError`."""
    try:
        value = strict_json.parse(text)
    except strict_json.NotJson as error:
        raise CommandError(printable(f"{name} must be a JSON object: {error}"), returncode=EXIT_INVALID) from None
    if not isinstance(value, dict):
        raise CommandError(printable(f"{name} must be a JSON object"), returncode=EXIT_INVALID)
    return value


def unusable(error: FixtureError, name: str) -> CommandError:
    """Return the error of a command for an unusable file. `error.path` is a JSON path in the file, or the file name."""
    code = EXIT_INVALID if error.code == "fixture_invalid" else EXIT_UNREADABLE
    return CommandError(f"{name}: {error}" if error.path.startswith("$") else str(error), returncode=code)


def _stdin() -> bytes:
    data = sys.stdin.buffer.read(MAX_STDIN + 1)
    if len(data) > MAX_STDIN:
        raise FixtureError("too_large", "standard input", f"larger than {MAX_STDIN} bytes")
    return data
