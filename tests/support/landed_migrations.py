"""Digests of the migrations that are in the main branch: databases have applied them, so they are never edited.

`python -m tests.support.landed_migrations` adds new ones to the file. A migration that is not in the main branch yet
may still be edited: delete its line, and run the command again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.support.paths import ROOT

#: The format of `sha256sum`, sorted by path. Each digest covers a file without its imports.
FILE = ROOT / "tests" / "landed_migrations.sha256"
COMMAND = "python -m tests.support.landed_migrations"


def current_digests() -> dict[str, str]:
    """Return the digests of this checkout's migrations: path → SHA-256."""
    paths = [
        path for app in ("agentops/accounts", "timeline", "runs") for path in (ROOT / app / "migrations").glob("0*.py")
    ]
    return {path.relative_to(ROOT).as_posix(): _digest(path) for path in sorted(paths)}


def _digest(path: Path) -> str:
    # Without imports, because moving a module changes no schema.
    lines = path.read_bytes().splitlines(keepends=True)
    return hashlib.sha256(b"".join(line for line in lines if not line.startswith((b"from ", b"import ")))).hexdigest()


def landed_digests(file: Path = FILE) -> dict[str, str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return {path: digest for digest, _, path in (line.partition("  ") for line in lines)}


def faults(current: dict[str, str], landed: dict[str, str]) -> list[str]:
    """Return what to do about each migration that was edited, removed or not added."""
    return [
        *(f"{path} was removed: put it back" for path in sorted(landed.keys() - current.keys())),
        *(
            f"{path} was edited: undo that, and write a new migration"
            for path in sorted(landed.keys() & current.keys())
            if landed[path] != current[path]
        ),
        *(f"{path} is new: {COMMAND}" for path in sorted(current.keys() - landed.keys())),
    ]


def add_new() -> None:
    """Add the migrations that are missing from the file. Existing digests stay unchanged."""
    digests = current_digests() | landed_digests() if FILE.exists() else current_digests()
    FILE.write_text("".join(f"{digest}  {path}\n" for path, digest in sorted(digests.items())), encoding="utf-8")


if __name__ == "__main__":
    add_new()
