"""What the command line takes as numbers, titles and labels: argparse types that say what they expected."""

from __future__ import annotations

import argparse
import re

from agentops.projects.management.base import printable
from runs.lifecycle.title_limits import MAX_LABEL, MAX_TITLE
from runs.management.agent.input_files import legible

MAX_ROWS = 1000


def whole(text: str) -> int:
    # int() also takes "1_000", " 12 " and other scripts' digits. What is too small or too large is not ours to say.
    if not re.fullmatch(r"-?[0-9]{1,10}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is no whole number")
    return int(text)


def seq(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is no number of an event")
    return int(text)


def limit(text: str) -> int:
    number = whole(text)
    if not 1 <= number <= MAX_ROWS:
        raise argparse.ArgumentTypeError(f"a number from 1 to {MAX_ROWS} is expected")
    return number


def seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,3})?", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is no number of seconds")
    return float(text)


def title(text: str) -> str:
    if len(text) > MAX_TITLE:
        raise argparse.ArgumentTypeError(f"a title has at most {MAX_TITLE} characters")
    return printable(legible(text)).strip()


def label(text: str) -> str:
    label = printable(legible(text)).strip()
    if not label or len(label) > MAX_LABEL:
        raise argparse.ArgumentTypeError(f"a label has 1 to {MAX_LABEL} characters")
    return label
