"""Programs from npm, installed from their package lock once for all processes of the suite."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.services import missing


def install(packages: Path) -> Path:
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
