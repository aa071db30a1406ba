"""What is deployed: a checkout, an installation, an earlier version of this repository, and docker-compose.yml.

A checkout needs no network: its lock file names only a small package in a local directory, and the site imports its
dependencies from the environment of the tests. An installation has no development packages.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import yaml

from tests.support.machine import ROOT, missing

UV = Path(sys.executable).with_name("uv")
#: Time limit of shell commands in seconds. Installing the site takes minutes on a busy machine.
SHELL_S = 600
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
            words, cwd=self.directory, env=shell, capture_output=True, text=True, timeout=SHELL_S, check=False
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
            # By default, installed files are links to the cache's: a test that changes one would change it everywhere.
            "UV_LINK_MODE": "copy",
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_CONSTRAINT": str(self.directory / ".venv" / "pins.txt"),
            "UV_BUILD_CONSTRAINT": str(LOCKED),
            **self.env,
        }


#: The words of a build with the packages of the tests.
BUILD = ("build", "--no-build-isolation", "--python", sys.executable, "--out-dir")


def build_wheel(directory: Path) -> None:
    """Build the wheel of the site in a directory."""
    uv(*BUILD, str(directory), "--wheel", str(ROOT))


def build_client_wheel(directory: Path) -> None:
    """Build the wheel of the client in a directory, from its source distribution, as an installer may do."""
    uv(*BUILD, str(directory), str(ROOT / "agentops"))


def uv(*words: str) -> str:
    """Run uv without the current virtual environment."""
    env = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"} | {
        "UV_PYTHON_DOWNLOADS": "never"
    }
    done = subprocess.run([str(UV), *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


#: The directories and files of the site, in every version.
PACKAGES = ("agentops", "runs", "timeline", "templates", "static", "manage.py", "CHANGELOG.md")
#: Column → value. Values are text, so that databases with different schemas can be compared.
Row = dict[str, str]


@dataclass
class Version:
    """The code of a version, with the database that it uses and the packages of the tests."""

    tree: Path
    database: str
    home: Path
    log: Path

    def python(self, *words: str, settings: str = "agentops.settings") -> subprocess.CompletedProcess[str]:
        """Run Python with the code of this version, with any exit code."""
        env = self._env() | {"DJANGO_SETTINGS_MODULE": settings}
        return subprocess.run(
            [sys.executable, *words], cwd=self.tree, env=env, capture_output=True, text=True, timeout=300, check=False
        )

    def manage(self, *words: str) -> str:
        done = self.python("manage.py", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker of this version, and kill it at the end of the block."""
        with self.log.open("ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "manage.py", "worker"], cwd=self.tree, env=self._env(), stdout=log, stderr=log
            )
        try:
            yield worker
        finally:
            worker.kill()
            worker.wait()

    def _env(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.tree),
            "AGENTOPS_HOME": str(self.home),
            "AGENTOPS_LEASE_S": "2",
            "AGENTOPS_RENEW_S": "0.5",
            "AGENTOPS_SWEEP_S": "0.5",
            "DATABASE_URL": self.database,
        }


def unpack(commit: str, directory: Path) -> Path:
    """Extract the files of a commit into a directory. Skip the test if this clone does not have the commit."""
    done = subprocess.run(["git", "archive", commit, *PACKAGES], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode().strip()
        missing(f"needs commit {commit} in the history of this clone (`git fetch --unshallow`): {reason}")
    directory.mkdir(exist_ok=True)
    subprocess.run(["tar", "--extract", "--directory", directory], input=done.stdout, check=True)
    return directory


def query(database: str, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query. `database` is a database URL."""
    with closing(_connect(database)) as connection, closing(connection.cursor()) as cursor:
        cursor.execute(sql)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def all_rows(database: str) -> dict[str, list[Row]]:
    """Return every row of every table."""
    if database.startswith("sqlite"):
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
    else:
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
    names = [name for (name,) in query(database, tables)]
    with closing(_connect(database)) as connection, closing(connection.cursor()) as cursor:
        return {name: _rows(cursor, name) for name in names}


def _rows(cursor: Any, table: str) -> list[Row]:
    cursor.execute(f'SELECT * FROM "{table}"')
    columns = [column[0] for column in cursor.description]
    return [dict(zip(columns, map(repr, row), strict=True)) for row in cursor.fetchall()]


def _connect(database: str) -> Any:
    if database.startswith("sqlite"):
        return sqlite3.connect(database.removeprefix("sqlite:///"), timeout=30)
    return psycopg.connect(database)


FILE = ROOT / "docker-compose.yml"
#: The services that run the image of agentops.
OURS = ["migrate", "web", "stream", "worker", "beat"]
VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z_]+)")


def parsed() -> dict[str, Any]:
    return dict(yaml.safe_load(FILE.read_text()))


def service(name: str) -> dict[str, Any]:
    return dict(parsed()["services"][name])


def variables() -> dict[str, str]:
    """Return the variables that .env.example sets."""
    lines = (ROOT / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"[A-Z_]+=", line))


def value(text: object) -> str:
    """Replace the variables in a text of the compose file, as Docker does with .env.example."""
    pattern = r"(?<!\$)\$\{([A-Z_]+):([-+])([^}]*)\}"
    return re.sub(pattern, _replaced, str(text)).replace("$$", "$")


def _replaced(found: re.Match[str]) -> str:
    name, operator, word = found.groups()
    own = variables().get(name)
    return (own or word) if operator == "-" else (word if own else "")
