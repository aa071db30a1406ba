"""argparse types for numbers, titles and labels, and the options that several commands have."""

from __future__ import annotations

import argparse
import re

from agentops.accounts.management.base import printable
from runs.lifecycle.title_limits import MAX_LABEL, MAX_TITLE
from runs.management.agent.input_files import clean_argument

MAX_ROWS = 1000


def whole(text: str) -> int:
    # int() also accepts "1_000", " 12 " and digits of other scripts. The action checks the range.
    if not re.fullmatch(r"-?[0-9]{1,10}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a whole number")
    return int(text)


def seq(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not the sequence number of an event")
    return int(text)


def limit(text: str) -> int:
    number = whole(text)
    if not 1 <= number <= MAX_ROWS:
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a number from 1 to {MAX_ROWS}")
    return number


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


def add_json(parser: argparse.ArgumentParser, text: str = "print JSON") -> None:
    parser.add_argument("--json", action="store_true", help=text)


def add_tail(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that prints events."""
    parser.add_argument("--after", metavar="SEQ", type=seq, default=0, help="only events after this sequence number")
    parser.add_argument("--no-follow", dest="follow", action="store_false", help="exit after the stored events")
    add_json(parser, "print JSON, one event per line")
