"""Environments without the development packages, in which tests install and run agentops as a user would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.paths import ROOT

UV = Path(sys.executable).with_name("uv")
LOCKED = ROOT / "requirements-dev.lock"
#: The files that `make install` reads, and the packages of the site.
CHECKOUT = (
    *(
        "Makefile",
        "pyproject.toml",
        "requirements.lock",
        "requirements-dev.lock",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
    ),
    *("agentops", "runs", "timeline", "static", "templates"),
)
#: Prefixes of the variables that configure package downloads and certificates on this machine.
_KEPT = (
    "UV_",
    "PIP_",
    "SSL_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "LANG",
)


@dataclass
class CleanEnvironment:
    """An empty virtual environment in `.venv` of a directory, and a user's shell in it.

    In the shell, `pip` runs `uv pip`: the same commands in a tenth of the time. Packages have the versions of the lock
    file, so a new release of a dependency changes no test.
    """

    directory: Path
    #: Further variables of the shell.
    env: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, directory: Path, **env: str) -> CleanEnvironment:
        directory.mkdir(parents=True, exist_ok=True)
        made = cls(directory, env)
        uv("venv", "--quiet", "--python", sys.executable, str(directory / ".venv"))
        programs = made.programs
        (programs / "uv").symlink_to(UV)
        (programs / "pip").write_text('#!/bin/sh\nexec "$(dirname "$0")/uv" pip "$@"\n')
        (programs / "pip").chmod(0o755)
        pins = re.findall(r"^[a-z0-9][^\s=]*==[^\\\n]+", LOCKED.read_text(encoding="utf-8"), re.MULTILINE)
        (directory / ".venv" / "pins.txt").write_text("\n".join(pins) + "\n")
        return made

    @property
    def programs(self) -> Path:
        return self.directory / ".venv" / "bin"

    def install_site(self, wheel: Path) -> None:
        """Install a wheel of agentops and the packages in its lock file."""
        target = ("--quiet", "--python", str(self.programs / "python"))
        uv("pip", "sync", *target, "--require-hashes", str(ROOT / "requirements.lock"))
        uv("pip", "install", *target, "--no-deps", str(wheel))

    def link_checkout(self) -> None:
        """Link this checkout's files into the directory, so that `make install` can install the site."""
        for name in CHECKOUT:
            (self.directory / name).symlink_to(ROOT / name)
        # uv is installed already; the Makefile would download it from an index.
        (self.directory / ".venv" / ".stamp-uv").touch()

    def sh(self, commands: str, **more: str) -> str:
        """Run commands in the directory, and return their output."""
        words = ["bash", "-e", "-c", f'export PATH="$PWD/.venv/bin:$PATH"\n{commands}']
        shell = self._shell() | more
        done = subprocess.run(
            words, cwd=self.directory, env=shell, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _shell(self) -> dict[str, str]:
        own = str(Path(sys.executable).parent)
        path = os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if part != own)
        kept = {name: value for name, value in os.environ.items() if name.startswith(_KEPT)}
        return {
            **kept,
            "PATH": path,
            "HOME": str(self.directory),
            "VIRTUAL_ENV": str(self.directory / ".venv"),
            "UV_CACHE_DIR": uv("cache", "dir").strip(),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_CONSTRAINT": str(self.directory / ".venv" / "pins.txt"),
            "UV_BUILD_CONSTRAINT": str(LOCKED),
            **self.env,
        }


def build_wheel(directory: Path) -> Path:
    """Build the wheel of this tree in a directory, and return its path."""
    uv("build", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(directory), str(ROOT))
    return next(directory.glob("*.whl"))


def uv(*words: str) -> str:
    """Run uv without the current virtual environment."""
    env = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"} | {
        "UV_PYTHON_DOWNLOADS": "never"
    }
    done = subprocess.run([str(UV), *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
