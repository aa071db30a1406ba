"""Test the wheel of the client: what is in it, and that it works without the site, and in an environment with it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path, PurePosixPath

import pytest

from tests.support.clients import Site
from tests.support.deployment import CleanEnvironment
from tests.support.machine import ROOT
from tests.support.web_server import WebThread

PROJECT = tomllib.loads((ROOT / "agentops/pyproject.toml").read_text(encoding="utf-8"))["project"]
#: The packages of the wheel, and the sources of them that have another path in the repository.
PACKAGES = {"agentops/client", "agentops/durable", "agentops/claude_sessions"}
MOVED = {"agentops/claude_sessions.py": "agentops/claude_sessions/__init__.py"}
#: Imports every module, and prints those that need a framework of an extra, and the site's packages that were loaded.
IMPORT_ALL = """
import importlib, pkgutil, sys, agentops
without = []
for module in pkgutil.walk_packages(agentops.__path__, "agentops.", onerror=lambda name: None):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as missing:
        assert missing.name.partition(".")[0] != "agentops", missing
        without.append(module.name)
print(without, {"django", "celery", "runs", "timeline", "agentops.base"} & sys.modules.keys())
"""
#: A user's program. The last call is wrong, which only a typed client shows.
PROGRAM = """
from agentops.client import AsyncClient, Client, Recorder, RunDetail
from agentops.claude_sessions import AgentopsSessionStore

def main(url: str, key: str) -> list[str]:
    with Client(url, key) as client, Recorder(url, key, agent="mine") as recorded:
        run: RunDetail = client.start("fixer", "Why is the build red?", labels=["ci"])
        recorded.turn("Started.", usage={"input_tokens": 1})
        store = AgentopsSessionStore(url, project="web", key=key)
        return [event.type for event in client.follow(run.id)] + [store.list_sessions.__name__]

async def wrong(client: AsyncClient) -> None:
    await client.start(17)
"""


def names_in(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def tracked(*paths: str) -> set[str]:
    done = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def elsewhere(client_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """Return an environment in which only the client and its dependencies are installed."""
    made = CleanEnvironment.make(tmp_path_factory.mktemp("elsewhere"))
    made.sh(f"pip install --quiet {client_wheel}")
    return made


def test_the_wheel_contains_the_client_and_nothing_of_the_site(client_wheel: Path) -> None:
    files = {PurePosixPath(name) for name in names_in(client_wheel) if ".dist-info/" not in name}
    sources = tracked("agentops/client", "agentops/durable", *MOVED)

    assert {MOVED.get(name, name) for name in sources} <= set(map(str, files))
    assert {"/".join(file.parts[:2]) for file in files} <= PACKAGES
    # A namespace package: the site's wheel has agentops/__init__.py.
    roots = {"/".join(file.parts[:2]) for file in files}
    assert {f"{root}/py.typed" for root in roots} <= set(map(str, files))
    assert (ROOT / "agentops/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_wheel_requires_only_httpx_and_pydantic(client_wheel: Path, wheel: Path) -> None:
    with zipfile.ZipFile(client_wheel) as packed:
        [name] = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(packed.read(name).decode())

    required = [text for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert {re.split(r"[<>=\[]", text)[0] for text in required} == {"httpx", "pydantic"}
    assert set(metadata.get_all("Provides-Extra", [])) == {"pydantic-ai", "langgraph", "openai-agents", "claude"}
    assert (metadata["Name"], metadata["Version"]) == ("agentops-runs-client", wheel.name.split("-")[1])
    # Both accept the same versions, so that they can be installed together.
    site = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(PROJECT["dependencies"]) <= set(site["project"]["dependencies"])


def test_both_wheels_together_contain_the_product(client_wheel: Path, wheel: Path) -> None:
    """No file belongs to both, so that one can be installed and removed without the other."""
    both = [names_in(each) for each in (wheel, client_wheel)]

    assert both[0] & both[1] == set()
    assert "agentops/__init__.py" in both[0]


def test_the_client_works_without_the_site(elsewhere: CleanEnvironment) -> None:
    (elsewhere.directory / "import_all.py").write_text(IMPORT_ALL)

    without, of_the_site = elsewhere.sh("python import_all.py").strip().rpartition(" ")[::2]

    extras = {name.replace("-", "_") for name in PROJECT["optional-dependencies"]}
    modules = re.findall(r"'([\w.]+)'", without)
    assert {module.split(".")[2] for module in modules if module.startswith("agentops.durable.")} <= extras
    assert all(module.startswith("agentops.durable.") for module in modules)
    assert of_the_site == "set()"
    installed = elsewhere.sh("pip list --format freeze && pip check")
    assert not re.search(r"^(agentops|django|celery)==", installed, re.MULTILINE)
    assert elsewhere.sh("ls .venv/lib/python*/site-packages | grep -xE 'runs|timeline|templates|static' || true") == ""


def test_the_client_is_typed(elsewhere: CleanEnvironment, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--no-color-output", "--config-file", "", "--cache-dir", "cache"]

    done = subprocess.run(
        [*mypy, "--python-executable", str(elsewhere.programs / "python"), "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    line = PROGRAM.count("\n")
    error = f'program.py:{line}: error: Argument 1 to "start" of "AsyncClient" has incompatible type'
    *errors, total = done.stdout.splitlines()
    assert ([each[: len(error)] for each in errors], total.split(" in ")[0]) == ([error], "Found 1 error"), done


def test_an_example_records_its_run_from_elsewhere(elsewhere: CleanEnvironment, web: WebThread) -> None:
    key = Site(web).key("ingest")

    printed = elsewhere.sh(f"python {ROOT}/docs/examples/client/plain_loop.py", SITE_URL=web.url, SITE_KEY=key)

    assert printed == "6 words.\n"


def test_client_and_site_can_share_an_environment(client_wheel: Path, wheel: Path, tmp_path: Path) -> None:
    shared = CleanEnvironment.make(tmp_path)
    where = 'python -c "import agentops.client, agentops; print(agentops.__file__ is not None)"'
    shared.sh(f"pip install --quiet {client_wheel} && pip install --quiet --no-deps {wheel}")

    assert shared.sh(where) == "True\n"
    shared.sh("pip uninstall --quiet agentops")
    assert shared.sh(where) == "False\n"
    shared.sh(f"pip install --quiet --no-deps {wheel} && pip uninstall --quiet agentops-runs-client")
    assert shared.sh('python -c "import agentops; print(agentops.IS_SITE)"') == "True\n"


def test_a_checkout_uses_its_own_client(elsewhere: CleanEnvironment) -> None:
    """As in the environment of a checkout in which a package of the user requires the client."""
    printed = elsewhere.sh('python -c "import agentops.client as c; print(c.__file__)"', PYTHONPATH=str(ROOT))

    assert printed == f"{ROOT}/agentops/client/__init__.py\n"


def test_the_client_refuses_another_project_of_the_same_name(client_wheel: Path, tmp_path: Path) -> None:
    """The distribution `agentops` of the package index has modules of both names. It may be installed first or last."""
    shared = CleanEnvironment.make(tmp_path)
    shared.sh(f"pip install --quiet {client_wheel}")
    [packages] = (tmp_path / ".venv/lib").glob("python*/site-packages/agentops")
    (packages / "__init__.py").write_text("from agentops.client import Client\n")

    def refusal(module: str) -> str:
        return shared.sh(f"python -c 'import {module}' 2>&1 | tail -n 1")

    expected = f"ImportError: {packages}/__init__.py belongs to another project named agentops"
    assert refusal("agentops.client").startswith(expected)
    (packages / "client/__init__.py").write_text("Client = object\n")
    assert refusal("agentops.claude_sessions").startswith(expected)
