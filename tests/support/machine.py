"""What tests need of the machine that runs them: the repository, services, programs, npm packages, a free port.

Also what tests do without a service or a directory, and directories that are built once per session. Imports nothing
from Django: tests/conftest.py and programs import it before the settings load.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


REQUIRE_SERVICES = os.environ.get("REQUIRE_SERVICES") == "1"


def missing(what: str) -> NoReturn:
    """Skip the test, or fail it if REQUIRE_SERVICES=1."""
    if REQUIRE_SERVICES:
        pytest.fail(f"{what}, and REQUIRE_SERVICES=1 forbids skipping", pytrace=False)
    pytest.skip(what)


#: Recorded material that is not part of the repository. A clone does not have it.
SHARED = ROOT.parent / "shared"
NO_SHARED = "needs the recordings in ../shared, a directory beside the project"
#: True while pytest loads the test modules. tests/support/second_pass.py sets it.
is_collecting = False


def shared_directory() -> Path:
    """Return `../shared`, or skip the test if it does not exist.

    Raise RuntimeError while a test module is loaded, because a clone without the directory could not collect the
    module.
    """
    if is_collecting:
        raise RuntimeError("A module looks for ../shared while it is loaded. Look for it within a test or a fixture.")
    if not SHARED.is_dir():
        missing(NO_SHARED)
    return SHARED


def chromium_path() -> str:
    """Return the path of the distribution's Chromium. The headless shell, if installed, is twice as fast."""
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if path is None:
        missing("there is no Chromium")
    return path


def free_port() -> int:
    """Return a port that is free now. Another process may take it before it is used."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def install_node_packages(packages: Path) -> Path:
    """Install the packages of the lock in `packages` with npm, and return the directory of `node_modules`."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        missing("there is no node, or no npm")
    directory = ROOT / ".venv" / f"node-{packages.name}"
    directory.mkdir(parents=True, exist_ok=True)
    lock, installed = packages / "package-lock.json", directory / "installed-lock.json"
    with (directory / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not installed.exists() or installed.read_bytes() != lock.read_bytes():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(packages / name, directory)
            command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error"]
            subprocess.run(command, cwd=directory, check=True, timeout=120)
            shutil.copy(lock, installed)
    return directory


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
