"""Follow docs/guides/extensions.md word for word: a package with tools, a provider, a hook and an agent, and its runs.

Also follow docs/guides/testing.md, which tests that agent without its provider.
"""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.command_line import Site
from tests.support.deployment import CleanEnvironment
from tests.support.machine import ROOT
from tests.support.timing import eventually

GUIDE, TESTING = ((ROOT / f"docs/guides/{name}.md").read_text(encoding="utf-8") for name in ("extensions", "testing"))
EXAMPLE = ROOT / "examples" / "shop_extension"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", GUIDE, re.DOTALL)
PREPARE, INSTALL, UP, RUN, APPROVE, REPORT, _ = [text for language, text in BLOCKS if language == "sh"]
FILES = [text for language, text in BLOCKS if language in ("toml", "python")]
#: The definition of the agent, after the files of the package.
AGENT = next(text for text in FILES if text.startswith("agent_id"))
TESTING_COMMANDS = re.findall(r"```sh\n(.*?)```", TESTING, re.DOTALL)
REFUND = "Refund 500 cents of A-17."
OF_CLERK = "SELECT r.id FROM agent_runs r JOIN runs_agent a ON a.id = r.agent_id WHERE a.slug = 'clerk' ORDER BY r.id"
PATHS = [Path(path) for path in re.findall(r"^`\.\./(shop_extension/[\w/.]+)`", GUIDE, re.MULTILINE)]


@dataclass
class Reader:
    """A reader who follows the guides in the directory of agentops, in an environment that has only the site."""

    environment: CleanEnvironment
    site: Site

    @property
    def directory(self) -> Path:
        return self.environment.directory

    def sh(self, commands: str) -> str:
        return self.environment.sh(commands)

    def result(self, prompt: str) -> tuple[str, str, str]:
        """Return the ID, status and result of the run with this prompt."""
        [(run_id, status, text)] = self.site.rows(f"SELECT id, status, result FROM agent_runs WHERE title = '{prompt}'")
        return str(UUID(run_id)), status, text

    def refund(self) -> str:
        """Approve the pending refund and return the ID of its run."""
        eventually(lambda: self.result(REFUND)[1] == "waiting", why="the run waits for approval")
        run_id = self.result(REFUND)[0]
        self.sh(APPROVE.replace("RUN", run_id))
        eventually(lambda: self.result(REFUND)[1] == "completed", why="the approved run goes on")
        return run_id


@pytest.fixture
def reader(site: Site, tmp_path: Path) -> Reader:
    home = {name: value for name, value in site.env().items() if name != "PATH"}
    environment = CleanEnvironment.make(tmp_path / "agentops", **home)
    environment.link_checkout()
    site.command = [str(environment.programs / "agentops")]
    return Reader(environment, site)


@pytest.mark.slow
def test_the_guide_to_extensions_works_as_written(reader: Reader) -> None:
    site, beside = reader.site, reader.directory.parent
    reader.sh(PREPARE)
    for path, text in zip(PATHS, FILES, strict=False):
        (beside / path).write_text(text)
    (reader.directory / "clerk.toml").write_text(AGENT)

    listed = reader.sh(INSTALL)

    assert [tuple(line.split("\t")[:2]) for line in listed.splitlines() if "\t" in line] == [
        ("tool", "order_status"),
        ("tool", "refund"),
        ("provider", "shop_rules"),
        ("hook", "refund_limit"),
        ("agent", "report version 1"),
    ]
    facts = json.loads(reader.sh("agentops tools refund"))
    assert facts["source"] == "entry point agentops.tools: shop = shop_extension.tools of shop-extension 1.0"
    assert (facts["effect"], facts["timeout_s"], facts["needs_approval"]) == ("idempotent", 10, True)
    assert set(facts["parameters"]["properties"]) == {"order", "cents"}

    assert UP == "make up\n"
    site.up()
    reader.sh(RUN)

    assert reader.result("Where is order A-17?")[1:] == (
        "completed",
        'The shop says: {"status": "shipped", "cents": 2500}',
    )
    denied = "The shop says: Denied by refund_limit: 5000 cents are more than 1000; a person has to do this"
    assert reader.result("Refund 5000 cents of A-17.")[1:] == ("completed", denied)
    reader.refund()
    assert reader.result(REFUND)[2] == "The shop says: Refunded 500 cents of A-17."
    written = site.rows("SELECT payload FROM agent_run_events WHERE type = 'tool.output'")
    assert [json.loads(payload)["text"] for (payload,) in written] == ["Refunding 500 cents of A-17\n"]

    reader.sh(REPORT)
    title = "The orders of today"
    eventually(lambda: reader.result(title)[1] == "waiting", why="the run of the agent of the package waits")
    reader.sh(APPROVE.replace("RUN", reader.result(title)[0]))
    eventually(lambda: reader.result(title)[1] == "completed", why="the approved run goes on")
    assert reader.result(title)[2] == "Reported 3400 cents."


@pytest.mark.slow
def test_the_guide_to_testing_works_as_written(reader: Reader) -> None:
    """Start from the result of the other guide, which is the example in the repository."""
    site, beside = reader.site, reader.directory.parent
    shutil.copytree(EXAMPLE, beside / "shop_extension")
    (reader.directory / "clerk.toml").write_text(AGENT)
    reader.sh(INSTALL)
    site.up()
    [apply, *_, refund] = RUN.strip().splitlines()[1:]
    reader.sh(f"{apply}\n{refund}")
    refunded = reader.refund()

    install_pytest, record, record_stored, run_tests, record_flow, in_ci = TESTING_COMMANDS
    reader.sh(install_pytest)
    [flow] = re.findall(r"```toml\n(.*?)```", TESTING, re.DOTALL)
    (reader.directory / "care.toml").write_text(flow)
    with ThreadPoolExecutor() as beside_it:
        flow_recorded = beside_it.submit(reader.sh, record_flow)
        reader.sh(record)
        checked = reader.sh(record_stored.replace("RUN", refunded))
    assert [line.split("\t")[1:3] for line in checked.splitlines()[-2:]] == [["2", "1"], ["2", "1"]]
    assert flow_recorded.result().splitlines()[-1].split("\t")[1:] == ["4", "2", "False"]
    files = re.findall(r"^`\.\./(shop_extension/tests/[\w.]+)`:", TESTING, re.MULTILINE)
    for file, tests in zip(files, re.findall(r"```python\n(.*?)```", TESTING, re.DOTALL), strict=True):
        (beside / file).write_text(tests)
    before = site.rows(OF_CLERK)  # the demo runs at the same time
    assert re.search(r"^6 passed", reader.sh(run_tests).splitlines()[-1].strip("= "))
    assert site.rows(OF_CLERK) == before

    # In another environment without a site, as the page describes for continuous integration.
    ci = CleanEnvironment.make(beside / "ci")
    for name, place in {"agentops": ROOT, "shop_extension": beside / "shop_extension"}.items():
        (ci.directory / name).symlink_to(place)
    for name in ("clerk.toml", "care.toml"):
        (ci.directory / name).write_text((reader.directory / name).read_text())
    told = ci.sh(in_ci).splitlines()
    assert any(re.search(r"^=+ 6 passed", line) for line in told)
    assert [line.split("\t")[1:3] for line in told[-2:]] == [["2", "1"], ["2", "1"]], told[-4:]


def test_the_example_in_the_repository_matches_the_guide() -> None:
    paths = [path.relative_to("shop_extension") for path in PATHS]
    texts = {str(path): text for path, text in zip(paths, FILES, strict=False)} | {"agent.toml": AGENT}
    assert {path: (EXAMPLE / path).read_text(encoding="utf-8") for path in texts} == texts
