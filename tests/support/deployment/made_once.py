"""Directories that are built once per test session: the first process that needs one builds it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a directory that `make` has filled. Other processes wait for it, and retry if `make` fails."""
    base = tmp_path_factory.getbasetemp()
    # With pytest-xdist, all workers share the parent of their directories.
    directory = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / name
    directory.mkdir(exist_ok=True)
    done = directory / "done"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(directory)
            done.touch()
    return directory
