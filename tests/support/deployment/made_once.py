"""What is made once for all processes of a run of the suite, by whichever of them needs it first."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a directory that `make` has filled. The others wait meanwhile; if it fails, the next one tries again."""
    base = tmp_path_factory.getbasetemp()
    # With pytest-xdist, the parent of a worker's directory is that of all workers.
    directory = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / name
    directory.mkdir(exist_ok=True)
    done = directory / "done"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(directory)
            done.touch()
    return directory
