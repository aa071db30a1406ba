"""Fork a run and compare the two in a browser: without scripts, on a narrow screen, in both color schemes."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from playwright.sync_api import Page, expect
from pydantic_ai.messages import ToolCallPart

from agentops.accounts.models import Role
from runs.actions.fork import fork
from runs.models import AgentRun
from runs.providers.base import ModelCall
from tests.support.browser import Tabs, open_run
from tests.support.engine import make_scripted
from tests.support.factories import drive, make_person
from tests.support.pages import FOREIGN, WHOLE
from tests.support.scripted_model import PLAYS, Move
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]
NARROW = {"width": 400, "height": 800}


def told(call: ModelCall) -> Iterable[Move]:
    """Yield long and hostile texts, which depend on the settings."""
    words = call.settings.get("words", "slowly and with care")
    yield f"Step {call.number}: I go on {words}. {'Much more is said here. ' * 20}\n\n{WHOLE}\n{words}"
    yield ToolCallPart("ledger_read", {"n": call.number, "words": words} if call.number == 4 else {"n": call.number})


@pytest.fixture
def two(web: WebThread) -> tuple[AgentRun, AgentRun]:
    """Create a run of five steps, and a fork after step 2 with other settings."""
    PLAYS["told"] = told
    run = drive(make_scripted(play="told", max_steps=5))
    settings = run.agent_config["settings"] | {"words": "quickly, <b>boldly</b> and with care"}
    changes = {"settings": settings, "instructions": "Hurry.\n" + "W" * 300, "max_steps": 4}
    return run, drive(fork(run.pk, by="ann", step=2, message="Faster, please.", agent=changes))


def assert_fits(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.smoke
def test_a_run_is_forked_and_compared_without_scripts(
    tabs: Tabs, web: WebThread, two: tuple[AgentRun, AgentRun]
) -> None:
    run, _ = two
    page = tabs.open(web.url, make_person(run.project, Role.OPERATOR), javascript=False)
    open_run(page, run)
    page.get_by_role("link", name="Fork…").click()
    page.get_by_label("Checkpoint").select_option("After step 3")
    page.get_by_label("Message").fill("Another way.")
    page.get_by_role("button", name="Fork run").click()

    new = AgentRun.objects.filter(forked_from=run).latest("created_at")
    expect(page).to_have_url(f"{web.url}/runs/{new.pk}")
    assert (new.forked_at_step, new.prompt) == (3, "Another way.")
    page.get_by_role("link", name="compare with original run").click()
    expect(page.get_by_text("The runs share the first 3 steps")).to_be_visible()
    page.get_by_role("link", name="Go to first difference").click()
    expect(page).to_have_url(re.compile(r"page=0#pair-0$"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_pages_fit_a_narrow_screen(
    tabs: Tabs, web: WebThread, two: tuple[AgentRun, AgentRun], scheme: str
) -> None:
    """Agents' texts are displayed as text and do not widen the page."""
    run, forked = two
    page = tabs.open(
        web.url,
        make_person(run.project, Role.OPERATOR),
        viewport=NARROW,
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    for address in (f"/compare?b={forked.pk}", f"/runs/{run.pk}/fork", f"/runs/{forked.pk}/fork?step=4"):
        page.goto(address)
        for each in page.locator("details.same-text > summary").all():
            each.click()
        assert_fits(page)
        assert page.evaluate(FOREIGN) == []
