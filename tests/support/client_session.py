"""A program that uses every method of the client, and the rows that it expects on its site.

It runs against a site, and against the recorded responses of one (tests/support/exchanges.py). So it takes all IDs from
`prepare` and from responses.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from agentops.client import InvalidRequest, StateConflict, UnknownObject
from agentops.client.delivery import EventDelivery
from agentops.client.recorder import RecordedRun
from runs.models import Agent
from tests.support.factories import (
    drive,
    key_prefix,
    make_agent,
    make_awaiting_approval,
    make_project,
    make_run,
    make_waiting,
    with_key,
)

UNKNOWN = UUID(int=1)
AGENT = "clerk"


def prepare() -> tuple[dict[str, str], str]:
    """Create a project with rows and a key. Return the IDs of the rows, with the key's prefix, by name; and the key."""
    project = make_project("shop")
    agent = make_agent(project, slug=AGENT)
    waiting = {
        "approved": make_awaiting_approval(project),
        "denied": make_awaiting_approval(project),
        "unknown": make_waiting(project),
    }
    for name, run in waiting.items():
        Agent.objects.filter(pk=run.agent_id).update(slug=name)
    completed = drive(make_run(agent, "Go.", labels=["old"]))
    child = make_run(agent, "Help.", parent_id=completed.pk)
    key = with_key(project, "read", "write", "ingest")
    rows: dict[str, Any] = {"project": project, **waiting, "completed": completed, "child": child}
    ids = {name: str(row.pk) for name, row in rows.items()} | {"key": key_prefix(key)}
    return ids, key["Authorization"].removeprefix("Bearer ")


def use_every_method(client: Any, ids: dict[str, str]) -> None:
    """Call each method of a client of the project."""
    control_a_run(client)
    read_runs(client, ids)
    decide(client, ids)
    be_refused(client, ids)


def use_new_methods(client: Any, ids: dict[str, str]) -> None:
    """Call the methods that the recorded site does not know. A release moves them to `use_every_method`."""
    with pytest.raises(StateConflict) as conflict:
        client.signal(ids["completed"], "payment", {"cents": 5})
    assert conflict.value.code == "run_not_remote"
    assert client.change_labels(ids["completed"], add=["checked"]) is not None


def control_a_run(client: Any) -> None:
    run = client.start(AGENT, "Look.", title="Mine", labels=["ci"], max_steps=40, idempotency_key="start-1")
    assert (run.status, run.title, run.labels, run.max_steps) == ("queued", "Mine", ["ci"], 40)
    assert (client.send(run.id, "Also b.py.").type, client.pause(run.id).status) == ("send", "paused")
    followed = list(client.follow(run.id, stop_on_pause=True))
    assert followed[-1].type == "run.paused"
    assert [event.seq for event in client.events(run.id, after_seq=1)] == [event.seq for event in followed[1:]]

    resumed = client.resume(run.id, "Continue.", max_steps=30)
    assert (resumed.resumed_from, client.resume(run.id).already_resumed) == (run.id, True)
    assert client.stop(resumed.id).status == "stopped"
    assert [event.type for event in client.follow(resumed.id)][-1] == "run.stopped"
    assert client.run(run.id).resumed_as == resumed.id


def read_runs(client: Any, ids: dict[str, str]) -> None:
    assert {run.status for run in client.runs(status=["stopped", "resumed"])} == {"stopped", "resumed"}
    assert {run.parent_run_id for run in client.runs(label="ci", root=True)} == {None}
    assert {ids["completed"], ids["child"]} < {str(run.id) for run in client.runs()}
    assert [str(run.id) for run in client.children(ids["completed"])] == [ids["child"]]
    completed = client.run(ids["completed"])
    assert (completed.status, completed.prompt, completed.total_runs) == ("completed", "Go.", 2)
    assert (completed.input_tokens > 0, completed.has_ended) == (True, True)
    messages, calls = list(client.messages(ids["denied"])), list(client.tool_calls(ids["denied"]))
    assert client.message(ids["denied"], messages[0].id).content["parts"]
    assert client.tool_call(ids["denied"], calls[0].id).input
    assert client.fork(ids["completed"], 1, "Otherwise.").resumed_from is None


def decide(client: Any, ids: dict[str, str]) -> None:
    pending = {str(row.run_id): row for row in client.approvals(kind="approval", state="pending")}
    first, second = pending[ids["approved"]], pending[ids["denied"]]
    arguments = {**first.arguments, "path": "src"}
    assert client.approve(first.run_id, first.call_id, arguments=arguments, always=True).state == "approved"
    assert client.deny(second.run_id, second.call_id, "Not this one.").message == "Not this one."
    [waiting] = client.approvals(kind="unknown_outcome", run_id=ids["unknown"])
    assert client.resolve_call(waiting.run_id, waiting.id, "failed", "The disk was full.").status == "error"


def be_refused(client: Any, ids: dict[str, str]) -> None:
    with pytest.raises(UnknownObject) as unknown:
        client.run(UNKNOWN)
    assert (unknown.value.status, unknown.value.code) == (404, "run_not_found")
    with pytest.raises(StateConflict) as conflict:
        client.reply(ids["completed"], "The branch main.")
    assert conflict.value.problem["run_status"] == "completed"
    with pytest.raises(InvalidRequest) as invalid:
        client.start(AGENT, max_steps=-1)
    assert [fault["pointer"] for fault in invalid.value.errors] == ["/max_steps"]


def record_a_run(url: str, key: str) -> None:
    """Record a run with every kind of event that the recorder has methods for."""
    delivery = EventDelivery(url, key)
    with RecordedRun(delivery, "fixer", prompt="Why is it red?", run_id="recorded", title="Red", model="gpt-5") as run:
        run.message("system", "Be brief.")
        run.thinking_delta("Hm.")
        run.text_delta("I look.")
        usage = {"input_tokens": 812, "output_tokens": 31}
        calls = [("c1", "read_log", {"lines": 50}), ("c2", "spawn", {})]
        run.turn("I look.", thinking="Hm.", tool_calls=calls, usage=usage, cost_usd="0.01", duration_ms=5.0)
        run.tool("read_log", {"lines": 50}, "one test failed", call_id="c1", duration_ms=3.0)
        with run.tool_call("spawn", {}, call_id="c2") as call:
            child = run.child("helper", prompt="Help.", call_id="c2")
            child.id = "recorded-child"
            with child:
                child.fail("no help", error_type="NoHelp")
            call.error = "failed"
        run.error("The server is slow.", error_type="Slow")
        run.event("x.note", number=7)
        run.complete({"failed": 1}, summary="A test failed.", cost_usd="0.01")
    delivery.close(30)
    assert (delivery.waiting, delivery.dropped, delivery.rejected) == (0, 0, 0)
