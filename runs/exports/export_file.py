"""Files that are made while they are sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class ExportFile:
    """A file: its name, its media type, and its text in portions of bounded size. The text can be read once."""

    name: str
    media_type: str
    portions: Iterator[str]
