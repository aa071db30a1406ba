"""Recorded files of other programs, from tests/recordings and, if it exists, ../shared/data."""

from __future__ import annotations

from pathlib import Path

from tests.support.paths import ROOT
from tests.support.services import NO_SHARED, SHARED, missing, shared_directory

OWN = ROOT / "tests" / "recordings"


def recording(name: str) -> Path:
    """Return the file or directory of this name. Skip the test if it is only in ../shared and that is missing."""
    own = OWN / name
    return own if own.exists() else shared_directory() / "data" / name


def recordings(folder: str) -> list[Path]:
    """Return all files of a folder, sorted: from ../shared, or from this repository if ../shared is missing.

    Skip the test if the folder is empty.
    """
    return sorted(path for path in (_place() / folder).rglob("*") if path.is_file()) or missing(NO_SHARED)


def folders() -> set[str]:
    """Return the names of the folders with recordings."""
    return {path.relative_to(_place()).parts[0] for path in _place().glob("*/**/*") if path.is_file()} - {"schemas"}


def _place() -> Path:
    return shared_directory() / "data" if SHARED.is_dir() else OWN
