"""Run the examples of the client as documented, in an environment without the server, and check their runs' pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Page, expect

from agentops.accounts.models import Role
from runs.models import AgentRun
from tests.support.browser import Tabs, obstacles, open_run, status
from tests.support.clients import Site
from tests.support.deployment import CleanEnvironment
from tests.support.factories import make_person
from tests.support.machine import ROOT
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser, pytest.mark.slow]
GUIDE = (ROOT / "docs/guides/client.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "docs/examples/client"
[INSTALL] = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
#: Additional packages of two of the examples.
EXTRAS = re.findall(r"`(pip install [\w-]+)`", GUIDE)
[RUN] = re.findall(r"`SITE_URL=\S+ SITE_KEY=\S+ (python plain_loop\.py)`", GUIDE)


class Seen(NamedTuple):
    """Texts on the page of a run: its title, the tool of a call and its output, and the answer."""

    title: str
    tool: str
    output: str
    answer: str


EXPECTED = {
    "plain_loop": Seen("How many words has this sentence?", "count_words", "6", "6 words."),
    "pydantic_ai_agent": Seen("What is the weather in Zürich?", "get_weather", "sunny in a", "It is sunny in Zürich."),
    "openai_agents": Seen("Where is my order 17?", "look_up", "order 17 has been sent", "It is on its way."),
}


@pytest.fixture
def elsewhere(web: WebThread, tmp_path: Path) -> CleanEnvironment:
    """Create an environment outside the server's, with a checkout of agentops and the examples."""
    site = Site(web)
    made = CleanEnvironment.make(tmp_path / "elsewhere", SITE_URL=web.url, SITE_KEY=site.key("ingest"), PYTHONUTF8="1")
    (made.directory / "agentops").symlink_to(ROOT)
    for name in EXPECTED:
        (made.directory / f"{name}.py").write_bytes((EXAMPLES / f"{name}.py").read_bytes())
    return made


def test_the_examples_run_as_documented_and_their_runs_can_be_read(
    elsewhere: CleanEnvironment, web: WebThread, tabs: Tabs
) -> None:
    assert len(EXTRAS) == len(EXPECTED) - 1
    elsewhere.sh(INSTALL)
    assert elsewhere.sh(RUN).strip() == EXPECTED["plain_loop"].answer
    server = "import importlib.util as found; print([found.find_spec(name) for name in ('django', 'celery')])"
    assert elsewhere.sh(f'python -c "{server}"') == "[None, None]\n"
    elsewhere.sh("\n".join(EXTRAS))
    for name in list(EXPECTED)[1:]:
        assert elsewhere.sh(RUN.replace("plain_loop", name)).strip() == EXPECTED[name].answer

    runs = {run.title: run for run in AgentRun.objects.select_related("project")}
    assert runs.keys() == {seen.title for seen in EXPECTED.values()}
    [project] = {run.project for run in runs.values()}
    page = tabs.open(web.url, make_person(project, Role.VIEWER))
    for seen in EXPECTED.values():
        open_run(page, runs[seen.title])
        assert_looks_right(page, seen)


def assert_looks_right(page: Page, seen: Seen) -> None:
    """Check the call with its output and the answer in the timeline, and the texts on the tabs."""
    status(page, "completed")
    expect(page.get_by_role("heading", level=1)).to_contain_text(seen.title)
    card = page.locator("#timeline .card-tool", has_text=seen.tool)
    expect(card).to_contain_text(seen.output)
    expect(page.locator("#timeline")).to_contain_text(seen.answer)
    expect(page.locator("#timeline .card-tool .status", has_text=re.compile("error|unknown|running"))).to_have_count(0)
    assert obstacles(page) == []
    for tab, text in (("Messages", seen.output), ("Tool calls", seen.tool), ("Cost", "Output")):
        page.locator(".run-tabs .tabs").get_by_role("link", name=re.compile(f"^{tab}")).click()
        expect(page.get_by_role("heading", level=2, name=tab)).to_be_visible()
        expect(page.locator("#tab")).to_contain_text(text)
