"""A clone of this repository, with the Makefile's environment, that needs no network.

The clone has this repository's files, but its lock file names only a small package in a local directory. The site
imports its dependencies from the environment of the tests, which Python sees and uv does not.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

UV = Path(sys.executable).with_name("uv")
#: The files of the site.
FILES = (
    *("Makefile", "pyproject.toml", "requirements-dev.lock", "manage.py", ".gitignore"),
    *("README.md", "CHANGELOG.md", "LICENSE", "agentops", "runs", "timeline", "static", "templates", "examples"),
)
DEPENDENCIES = re.compile(r"^dependencies = \[\n.*?^\]\n", re.DOTALL | re.MULTILINE)


@dataclass
class Checkout:
    """A repository (`upstream`), and a user's clone (`directory`)."""

    upstream: Path
    directory: Path
    #: The wheels that uv can install; they replace a package index.
    wheels: Path

    @classmethod
    def make(cls, directory: Path) -> Checkout:
        checkout = cls(directory / "upstream", directory / "agentops", directory / "wheels")
        checkout.wheels.mkdir()
        checkout.upstream.mkdir()
        checkout.git(checkout.upstream, "init", "--quiet", "--initial-branch", "main")
        for name in FILES:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
            copy(ROOT / name, checkout.upstream / name)
        checkout.release("1.0")
        checkout.git(directory, "clone", "--quiet", str(checkout.upstream), str(checkout.directory))
        checkout.make_environment()
        return checkout

    def release(self, version: str) -> None:
        """Commit a lock file that pins this version of the package `steady`."""
        digest = make_wheel(self.wheels, "steady", version)
        lock = f"steady=={version} \\\n    --hash=sha256:{digest}\n"
        (self.upstream / "requirements.lock").write_text(lock)
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        own = DEPENDENCIES.sub(f'dependencies = ["steady=={version}"]\n', project, count=1)
        (self.upstream / "pyproject.toml").write_text(own, encoding="utf-8")
        self.git(self.upstream, "add", "--all")
        self.git(self.upstream, "commit", "--quiet", "--message", f"Need steady {version}")

    def pull(self) -> None:
        self.git(self.directory, "pull", "--quiet")

    def require(self, *lines: str) -> None:
        """Write the user's requirements.local."""
        (self.directory / "requirements.local").write_text("".join(f"{line}\n" for line in lines))

    def make_target(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run make, with any exit code."""
        return subprocess.run(
            ["make", *words],
            cwd=self.directory,
            env=self.env(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def run(self, program: str, *words: str) -> str:
        """Run a program of the environment, and return its output."""
        env = self.env(AGENTOPS_HOME=str(self.directory / ".agentops"), VIRTUAL_ENV=str(self.directory / ".venv"))
        done = subprocess.run(
            [str(self.program(program)), *words],
            cwd=self.directory,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def installed(self) -> dict[str, str]:
        """Return the packages of the environment: name → version."""
        words = ["pip", "list", "--format", "freeze", "--exclude-editable", "--python", str(self.program("python"))]
        done = subprocess.run([str(UV), *words], env=self.env(), capture_output=True, text=True, check=True)
        return dict(line.split("==") for line in done.stdout.splitlines())

    def program(self, name: str) -> Path:
        return self.directory / ".venv" / "bin" / name

    def env(self, **more: str) -> dict[str, str]:
        """Return a user's environment variables: no package index, and none of the tests' tools on the path."""
        own = str(Path(sys.executable).parent)
        path = os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if part != own)
        return {
            "PATH": path,
            "HOME": str(self.directory.parent),
            "UV_OFFLINE": "1",
            "UV_NO_INDEX": "1",
            "UV_FIND_LINKS": str(self.wheels),
            "UV_NO_BUILD_ISOLATION": "1",
            "UV_CACHE_DIR": str(self.directory.parent / "cache"),
            "UV_NO_CONFIG": "1",
            **more,
        }

    def make_environment(self) -> None:
        """Create .venv as the Makefile does. uv is a symbolic link, because installing it needs an index."""
        venv = self.directory / ".venv"
        words = [str(UV), "venv", "--quiet", "--python", sys.executable, str(venv)]
        subprocess.run(words, env=self.env(), check=True)
        self.program("uv").symlink_to(UV)
        (venv / ".stamp-uv").touch()
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(venv)}))
        (packages / "of-the-tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")

    def git(self, directory: Path, *words: str) -> None:
        name = {"GIT_AUTHOR_NAME": "Test", "GIT_COMMITTER_NAME": "Test", "GIT_CONFIG_GLOBAL": os.devnull}
        name |= {"GIT_AUTHOR_EMAIL": "test@example.com", "GIT_COMMITTER_EMAIL": "test@example.com"}
        subprocess.run(["git", *words], cwd=directory, env=self.env(**name), check=True, timeout=120)


def make_wheel(directory: Path, name: str, version: str, *, requires: str = "") -> str:
    """Write a wheel with one empty module, and return its SHA-256 in hexadecimal."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": metadata + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in (files | {f"{info}/RECORD": record}).items():
            wheel.writestr(zipfile.ZipInfo(file), text)
    return hashlib.sha256(path.read_bytes()).hexdigest()
