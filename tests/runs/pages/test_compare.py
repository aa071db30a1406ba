"""Test the comparison of two runs: identical steps, the first difference, and access."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pydantic_ai.messages import ToolCallPart

from agentops.accounts.models import Project, Role
from runs.actions.fork import fork
from runs.actions.resume import resume
from runs.models import AgentRun
from runs.pages.content import differences
from runs.pages.content.differences import difference
from runs.pages.runs.compare_page import PAGE
from runs.providers.base import ModelCall
from tests.support.factories import drive, make_agent, make_person, make_project, make_run
from tests.support.pages import Element, parse
from tests.support.scripted_model import PLAYS, Move
from tests.support.secret_samples import TOKENS

HOSTILE = '</pre><script>alert("x")</script>\u202e'


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def viewer(project: Project) -> Client:
    client = Client()
    client.force_login(make_person(project, Role.VIEWER))
    return client


@pytest.fixture
def run(project: Project, tmp_path: Path) -> AgentRun:
    """Create a run that is paused after six steps."""
    PLAYS["compared"] = compared
    settings = {"ledger": str(tmp_path / "ledger"), "play": "compared"}
    agent = make_agent(
        project,
        provider="scripted",
        model="scripted-model",
        tools=["ledger_read"],
        settings=settings,
        max_steps=6,
        instructions="Be careful.",
    )
    return drive(make_run(agent, "Go."))


def compared(call: ModelCall) -> Iterable[Move]:
    """Yield the same answer in each step, except for changes from the settings."""
    told = call.settings.get("told", {})
    yield f"Step {call.number}: {told.get('text', 'looking')} further."
    yield ToolCallPart("ledger_read", {"n": call.number + told.get("n", 0)}, f"call-{call.number}")


def other(run: AgentRun, step: int, **told: Any) -> AgentRun:
    settings = run.agent_config["settings"] | {"told": told}
    return drive(fork(run.pk, by="ann", step=step, agent={"settings": settings, "max_steps": 4}))


def page_of(client: Client, query: str) -> Element:
    answer = client.get(f"/compare{query}")
    assert answer.status_code == 200
    return parse(answer.content.decode())


def pairs_of(page: Element) -> list[str]:
    """Return the headings of the pairs."""
    return [next(e for e in pair.walk() if e.tag == "h3").words for pair in page.all("pair")]


pytestmark = pytest.mark.django_db(transaction=True)


def test_a_fork_is_compared_with_its_original_run(viewer: Client, run: AgentRun) -> None:
    """UX /compare: show the shared steps and the first difference."""
    forked = other(run, 2, text="peering")

    page = page_of(viewer, f"?b={forked.pk}")

    assert "The runs share the first 2 steps" in page.words
    assert pairs_of(page) == [
        "A step 3 · B step 3 different first difference",
        *(f"A step {n} · B step {n} different" for n in (4, 5, 6)),
    ]
    first = page.find("pair-0")
    assert first is not None
    assert [mark.text for mark in first.walk() if mark.tag == "mark"] == ["looking", "peering"]
    assert "ledger_read: arguments identical" in first.words
    [jump] = [e for e in page.walk() if e.attributes.get("href", "").endswith("#pair-0")]
    assert jump.words == "Go to first difference"
    hrefs = [e.attributes["href"] for e in first.walk() if e.tag == "a"]
    assert [href.partition("?")[0] for href in hrefs] == [f"/runs/{run.pk}", f"/runs/{forked.pk}"]
    assert "Step 3" in viewer.get(hrefs[1].partition("#")[0]).content.decode()
    differing = [row.words for row in page.all("differs")]
    assert any(row.startswith("Step budget") for row in differing)


def test_calls_with_different_arguments_are_aligned(viewer: Client, run: AgentRun) -> None:
    forked = other(run, 2, n=10)

    page = page_of(viewer, f"?a={run.pk}&b={forked.pk}")

    first = page.find("pair-0")
    assert first is not None
    lines = [e.words for e in first.walk() if e.classes & {"only-a", "only-b"}]
    assert '−A: "n": 3' in lines
    assert '+B: "n": 13' in lines
    assert "−A: did 3" in lines


def test_a_step_of_only_one_run_is_detected_in_the_middle(viewer: Client, run: AgentRun) -> None:
    """LCS: an additional step in one run does not make all later steps differ."""
    longer = other(run, 1)
    forked = drive(fork(run.pk, by="ann", step=1, message="Once more.", agent={"max_steps": 5}))

    page = page_of(viewer, f"?a={longer.pk}&b={forked.pk}")

    assert pairs_of(page)[0] == "A step 2 · B step 2 different first difference"
    assert pairs_of(page)[1] == "A step 3 · B step 3 identical"
    assert pairs_of(page)[-1] == "not in A · B step 6 different"


def test_a_resumed_run_is_compared_with_the_previous_one(viewer: Client, run: AgentRun) -> None:
    later = drive(resume(run.pk, by="ann", max_steps=1).run)

    page = page_of(viewer, f"?b={later.pk}")

    assert "The runs share the first 6 steps" in page.words
    assert pairs_of(page) == ["not in A · B step 7 different first difference"]


def test_changed_instructions_are_displayed_with_the_old_ones(viewer: Client, run: AgentRun) -> None:
    forked = drive(fork(run.pk, by="ann", step=5, agent={"instructions": "Be quick."}))

    page = page_of(viewer, f"?b={forked.pk}")

    assert "Agent instructions" in page.words
    assert "−A: Be careful." in page.words
    assert "+B: Be quick." in page.words


def test_a_run_and_itself_have_no_difference(viewer: Client, run: AgentRun) -> None:
    page = page_of(viewer, f"?a={run.pk}&b={run.pk}")

    assert "No other steps to compare" in page.words


def test_identical_runs_are_reported_as_identical(viewer: Client, run: AgentRun) -> None:
    again = drive(make_run(run.agent, "Go."))

    page = page_of(viewer, f"?a={run.pk}&b={again.pk}")

    assert "No differences" in page.words
    assert set(pairs_of(page)) == {f"A step {n} · B step {n} identical" for n in range(1, 7)}


def test_texts_of_agents_are_escaped_and_masked(viewer: Client, run: AgentRun) -> None:
    key = TOKENS["anthropic"]()
    forked = other(run, 5, text=f"{HOSTILE} {key}")

    html = viewer.get(f"/compare?b={forked.pk}").content.decode()

    assert "<script>alert" not in html
    assert "\u202e" not in html
    assert key not in html
    assert "&lt;script&gt;" in html
    parse(html)


def test_an_invalid_id_is_reported(viewer: Client) -> None:
    for query in ("?a=x", "?a=%00", "?a=1&b=2", "?b=" + "f" * 5000):
        answer = viewer.get(f"/compare{query}")
        assert answer.status_code == 400, query
        assert "is not a valid run ID" in answer.content.decode(), query


def test_without_runs_the_page_asks_for_them(viewer: Client, run: AgentRun) -> None:
    assert 'name="b"' in viewer.get("/compare").content.decode()
    assert "does not continue or fork another run" in viewer.get(f"/compare?b={run.pk}").content.decode()


def test_both_runs_must_be_visible_to_the_reader(viewer: Client, run: AgentRun) -> None:
    """A run of another project counts as unknown, on either side."""
    theirs = make_run(make_agent(make_project("beta")))

    for query in (f"?a={run.pk}&b={theirs.pk}", f"?a={theirs.pk}&b={run.pk}", f"?b={theirs.pk}"):
        assert viewer.get(f"/compare{query}").status_code == 404
    assert Client().get(f"/compare?a={run.pk}&b={run.pk}").status_code == 302


@pytest.mark.slow
def test_steps_are_paginated(viewer: Client, project: Project, run: AgentRun) -> None:
    """The number of pairs and queries is bounded for runs of any length."""
    a, b = [drive(make_run(make_agent(project, **run_fields(run)), f"Go {n}.")) for n in range(2)]

    for page, count in (("-1", PAGE), ("x", PAGE), ("99", 5), ("1", 5)):
        assert len(pairs_of(page_of(viewer, f"?a={a.pk}&b={b.pk}&page={page}"))) == count, page
    with CaptureQueriesContext(connection) as few:
        viewer.get(f"/compare?a={run.pk}&b={a.pk}")
    with CaptureQueriesContext(connection) as many:
        viewer.get(f"/compare?a={a.pk}&b={b.pk}")
    assert len(many) <= len(few) + 4


def run_fields(run: AgentRun) -> dict[str, Any]:
    config = run.agent_config
    return {name: config[name] for name in ("provider", "model", "tools", "settings")} | {"max_steps": PAGE + 5}


# --- Text differences ----------------------------------------------------------------------------------------------


def kinds(a: str, b: str) -> list[str]:
    return [line.kind if line.kind != "gap" else f"gap {line.hidden}" for line in difference("x", a, b).lines]


def test_unchanged_lines_far_from_a_difference_are_omitted() -> None:
    lines = [str(number) for number in range(30)]
    changed = [*lines[:10], "new", *lines[11:]]

    assert kinds("\n".join(lines), "\n".join(changed)) == [
        "gap 8",
        "same",
        "same",
        "only-a",
        "only-b",
        "same",
        "same",
        "gap 17",
    ]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("", "", []),
        ("a", "a", ["same"]),
        ("", "a\nb", ["only-b", "only-b"]),
        ("a\nb", "", ["only-a", "only-a"]),
        ("a\nb", "c\nd", ["only-a", "only-a", "only-b", "only-b"]),
        ("a", "a\nb", ["same", "only-b"]),
    ],
)
def test_small_differences(a: str, b: str, expected: list[str]) -> None:
    assert kinds(a, b) == expected


def test_changed_words_are_marked_in_lines_of_limited_length() -> None:
    one, other_ = difference("x", "the red fox", "the blue fox").lines
    assert [piece.text for piece in one.pieces] == ["the ", "red", " fox"]
    assert [piece.differs for piece in other_.pieces] == [False, True, False]
    long = difference("x", "a " * differences.MAX_LINE, "b " * differences.MAX_LINE).lines
    assert [len(line.pieces) for line in long] == [1, 1]
