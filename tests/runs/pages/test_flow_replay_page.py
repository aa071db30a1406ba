"""Test the replay page of a flow run without scripts: links, a form, and the graph and rows at an event."""

from __future__ import annotations

import pytest
from django.test import Client

from agentops.accounts.models import Project, Role
from runs.actions import run_actions
from runs.models import FlowRun
from runs.worker.worker import Worker
from tests.support.factories import make_person, make_project
from tests.support.flows import make_flow_run, play, run_of
from tests.support.pages import Element, parse
from timeline import log

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]
REVIEW = {
    "flow_id": "review",
    "title": "Review <b>it</b>",
    "nodes": [
        {"id": "begin", "type": "constant", "value": "<i>x</i>"},
        {"id": "gate", "type": "human", "question": "Right?"},
        {"id": "end", "type": "constant", "value": "{{ outputs.gate }}"},
    ],
    "edges": [
        {"from": "begin", "to": "gate"},
        {"from": "gate", "to": "begin", "when": "outputs.gate == 'no'", "maxIterations": 2},
        {"from": "gate", "to": "end", "when": "outputs.gate == 'yes'"},
    ],
}


@pytest.fixture
def project(transactional_db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def flow_run(project: Project, worker: Worker) -> FlowRun:
    """Create a flow run that completed after one loop."""
    started = make_flow_run(REVIEW, project)
    for key, answer in (("gate", "no"), ("gate#1", "yes")):
        run_actions.reply("user:oscar", run_of(play(started, worker), key), answer)
    ended = play(started, worker)
    assert ended.status == "completed"
    return ended


def page_of(flow_run: FlowRun, query: str = "") -> Element:
    client = Client()
    client.force_login(make_person(flow_run.project, Role.VIEWER))
    answer = client.get(f"/flow-runs/{flow_run.pk}/replay{query}")
    assert answer.status_code == 200, answer.content
    return parse(answer.content.decode().partition("<body")[2].partition(">")[2].partition("</body>")[0])


def nodes(page: Element) -> dict[str, list[str]]:
    """Return the status, runs and output of each node in the table."""
    rows = [each for each in page.walk() if each.attributes.get("id", "").startswith("node-")]
    cells = {row.attributes["id"].removeprefix("node-"): row.elements[1:] for row in rows}
    return {name: [cell.words for cell in own] for name, own in cells.items()}


def fact(page: Element, name: str) -> str:
    [dl] = page.all("replay-facts")
    return next(part.elements[1].words for part in dl.elements if part.elements[0].words == name)


def seq_of_nth(flow_run: FlowRun, type_: str, place: int = 0) -> int:
    return [event.seq for event in log.read(flow_run.pk, limit=1000) if event.type == type_][place]


def test_the_replay_starts_before_any_node_has_run(flow_run: FlowRun) -> None:
    page = page_of(flow_run)
    last = len(log.read(flow_run.pk, limit=1000))

    assert fact(page, "Status") == "queued"
    assert fact(page, "Nodes") == "3 pending"
    assert nodes(page) == {name: ["pending", "–", "–"] for name in ("begin", "gate", "end")}
    assert "Read-only: nothing is executed" in page.words
    links = {each.words: each.attributes["href"] for each in page.walk() if "data-seek" in each.attributes}
    base = f"/flow-runs/{flow_run.pk}/replay?seq="
    assert links == {"First": f"{base}1", "Previous": f"{base}1", "Next": f"{base}2", "Last": f"{base}{last}"}


def test_later_events_do_not_show(flow_run: FlowRun) -> None:
    """A run is linked once it exists. Its outcome and later iterations appear only at their events."""
    asked = page_of(flow_run, f"?seq={seq_of_nth(flow_run, 'node.started', 1)}")
    assert nodes(asked) == {
        "begin": ["done", "–", "<i>x</i>"],
        "gate": ["running", "run", "–"],
        "end": ["pending", "–", "–"],
    }
    first = run_of(flow_run, "gate")
    assert f"/runs/{first.pk}" in {each.attributes.get("href") for each in asked.walk()}

    looped = page_of(flow_run, f"?seq={seq_of_nth(flow_run, 'loop.iterated')}")
    assert fact(looped, "Loops") == "gate->begin 1 of 2"
    assert nodes(looped)["gate"][:2] == ["pending iteration 2", "run"]
    ended = page_of(flow_run, "?seq=9999")
    assert "Event 9999 does not exist." in ended.words
    assert fact(ended, "Status") == "completed"
    assert nodes(ended)["gate"] == ["done iteration 2", "iteration 2, run", "yes"]


@pytest.mark.slow
def test_the_rows_end_at_the_event(flow_run: FlowRun) -> None:
    for event in log.read(flow_run.pk, limit=1000):
        [pane] = page_of(flow_run, f"?seq={event.seq}").all("replay-rows")
        shown = [int(row.attributes["data-seq"]) for row in pane.walk() if "data-seq" in row.attributes]
        assert shown[-1] == event.seq


def test_the_pages_of_a_flow_run_link_to_the_replay(flow_run: FlowRun, client: Client) -> None:
    client.force_login(make_person(flow_run.project, Role.VIEWER))
    for path in ("", "/state", "/replay"):
        assert (
            f'href="/flow-runs/{flow_run.pk}/replay"' in client.get(f"/flow-runs/{flow_run.pk}{path}").content.decode()
        )
    frame = client.get(f"/flow-runs/{flow_run.pk}/replay/frame?seq=3").content.decode()
    assert 'data-seq="3"' in frame
    assert "<html" not in frame
    assert "Review &lt;b&gt;it" in client.get(f"/flow-runs/{flow_run.pk}/replay").content.decode()
    assert client.get(f"/flow-runs/{flow_run.pk}/replay?seq=x").status_code == 400
