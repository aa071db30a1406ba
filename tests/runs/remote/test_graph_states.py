"""`/api/work/checkpoints` and `/api/work/threads`, and the operation `put`: scopes, lineages, pieces and refusals."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import Project
from runs.actions.resume import resume
from runs.models import AgentRun, GraphThread, GraphValue
from runs.remote import graph_states
from runs.upkeep import old_records
from tests.support.factories import make_project, with_key
from tests.support.remote import Program

pytestmark = pytest.mark.django_db(transaction=True)
ERROR = {"type": "ValueError", "message": "no"}


@pytest.fixture
def program() -> Program:
    program = Program(make_project("demo"))
    program.start_run()
    program.claim()
    return program


def checkpoint(number: int, **facts: Any) -> dict[str, Any]:
    return {"kind": "checkpoint", "checkpoint": f"cp{number}", "text": f"null:{number}", "facts": facts}


def put(program: Program, *values: dict[str, Any]) -> Any:
    return program.send({"op": "put", "values": list(values)})


def listed(program: Program, **query: Any) -> Any:
    answer = program.get("checkpoints", **query)
    assert answer.status == 200, answer
    return answer.json


def ids(program: Program, **query: Any) -> list[str]:
    return [row["id"] for row in listed(program, **query)["checkpoints"]]


def thread_op(program: Program, op: str, **members: Any) -> Any:
    return program.post("threads", ops=[{"op": op, **members}])


def test_values_of_a_run_are_read_with_the_runs_that_it_continues(program: Program) -> None:
    channel = {"kind": "channel", "key": "messages/1", "keeps": True}
    put(program, {**channel, "text": "ab", "index": 0}, {**channel, "text": "cd", "index": 1})
    put(program, checkpoint(1, parent=None, channels=["messages/1"], metadata={"step": 0}))
    write = {"kind": "write", "checkpoint": "cp1", "key": "t/0", "facts": {"task": "t"}}
    put(program, {**write, "text": "first", "keeps": True})
    put(program, {**write, "text": "second", "keeps": True}, {**channel, "text": "xx", "index": 0})
    first = program.run_id
    program.release("failed", error=ERROR)
    resumed = resume(AgentRun.objects.get(pk=first).pk, by="test").run
    program.claim()
    put(program, checkpoint(2, parent="cp1", metadata={"step": 1}))

    page = listed(program, thread=str(resumed.pk), namespace="")
    assert [row["id"] for row in page["checkpoints"]] == ["cp2", "cp1"]
    assert page["checkpoints"][1]["writes"] == [{"key": "t/0", "facts": {"task": "t"}, "text": "first"}]
    assert [(row["key"], row["text"]) for row in page["channels"]] == [("messages/1", "abcd")]
    assert ids(program, thread=first) == ["cp1"]
    assert ids(program, thread=str(resumed.pk), metadata='{"step": 1}') == ["cp2"]
    assert ids(program, thread=str(resumed.pk), before="cp2", limit=1) == ["cp1"]
    assert ids(program, thread=str(resumed.pk), checkpoint="cp1") == ["cp1"]


def test_pages_of_checkpoints(program: Program) -> None:
    put(program, *(checkpoint(number) for number in range(5)))
    page = listed(program, thread=program.run_id, limit=3)
    assert ([row["id"] for row in page["checkpoints"]], page["before"]) == (["cp4", "cp3", "cp2"], "cp2")
    rest = listed(program, thread=program.run_id, limit=3, before="cp2")
    assert ([row["id"] for row in rest["checkpoints"]], rest["before"]) == (["cp1", "cp0"], None)


def test_a_process_that_lost_the_run_stores_nothing(program: Program) -> None:
    program.epoch += 1
    answer = put(program, checkpoint(1))
    assert (answer.status, answer.json["code"], GraphValue.objects.count()) == (409, "lease_lost", 0)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"text": "é"}, "invalid_value"),
        ({"text": "x" * (1024 * 1024 + 1)}, "value_too_large"),
        ({"namespace": "ü" * 300, "key": "ü" * 301}, "invalid_body"),
        ({"namespace": "€" * 300, "key": "€" * 300}, "invalid_value"),
        ({"kind": "other"}, "invalid_body"),
    ],
)
def test_values_that_cannot_be_stored_are_refused(program: Program, value: dict[str, Any], code: str) -> None:
    answer = put(program, {**checkpoint(1), **value})
    assert (answer.status, answer.json["code"]) == (422, code)


def test_threads_belong_to_the_project_of_the_key(program: Program) -> None:
    assert thread_op(program, "put", thread="chat", values=[checkpoint(1)]).status == 200
    other = Program(make_project("other"))
    assert thread_op(other, "copy", thread="chat", to="stolen").json == {"results": [{"values": 0}]}
    assert thread_op(other, "delete", thread="chat").json == {"results": [{"threads": 0}]}
    assert ids(other) == ids(other, thread="chat") == ids(other, thread=program.run_id) == []
    assert ids(program) == ["cp1"]
    for scope in ("read", "write", "ingest"):
        headers = with_key(program.project, scope)
        assert Client().get("/api/work/checkpoints", headers=headers).status_code == 403
        body = {"ops": [{"op": "delete", "thread": "chat"}]}
        answer = Client().post("/api/work/threads", body, content_type="application/json", headers=headers)
        assert answer.status_code == 403
    assert GraphThread.objects.get().project == Project.objects.get(slug="demo")


def test_the_metadata_of_checkpoints_are_masked(program: Program) -> None:
    secret = "sk-ant-api03-" + "A1b2" * 20
    thread_op(program, "put", thread="chat", values=[checkpoint(1, metadata={"note": f"the key {secret}"})])
    [row] = listed(program, thread="chat")["checkpoints"]
    assert secret not in str(row["facts"])


def test_a_state_that_is_put_into_a_run_without_steps_is_refused(program: Program) -> None:
    put(program, checkpoint(1))
    answer = thread_op(program, "put", thread=program.run_id, parent="cp1", values=[checkpoint(2, parent="cp1")])
    assert (answer.status, answer.json["code"]) == (422, "no_checkpoint")
    answer = thread_op(program, "delete", thread=program.run_id)
    assert (answer.status, answer.json["code"]) == (409, "thread_is_run")


def test_a_checkpoint_that_names_itself_as_its_parent_is_pruned(program: Program) -> None:
    thread_op(program, "put", thread="t", values=[checkpoint(1, parent="cp1", deltas=["messages"])])

    assert thread_op(program, "prune", thread="t").json == {"results": [{"values": 0}]}


def forked(program: Program) -> AgentRun:
    """Return a run with a step and a checkpoint, which may be forked."""
    program.step("1", "plan", 1)
    put(program, checkpoint(1))
    program.release("completed", result="done")
    return program.run


def parts_of(run: AgentRun, fork: str) -> list[dict[str, Any]]:
    """Return the operations that store a new state of a run in two requests."""
    both = {"op": "put", "thread": str(run.pk), "parent": "cp1", "fork": fork}
    channel = {"kind": "channel", "key": "messages/2", "text": "ab", "keeps": True}
    whole = checkpoint(2, parent="cp1", channels=["messages/2"])
    return [{**both, "values": [channel], "completes": False}, {**both, "values": [whole]}]


def test_a_state_in_several_requests_makes_one_fork(program: Program) -> None:
    run = forked(program)
    first, last = parts_of(run, "01a22696-a1a8-75ab-a9ab-b03c776679f4")
    program.post("threads", ops=[first])
    assert AgentRun.objects.filter(forked_from=run).count() == 0
    [result] = program.post("threads", ops=[last]).json["results"]

    [fork] = AgentRun.objects.filter(forked_from=run)
    assert result == {"thread": str(fork.pk)}
    page = listed(program, thread=str(fork.pk))
    assert [(row["key"], row["text"]) for row in page["channels"]] == [("messages/2", "ab")]
    assert not GraphThread.objects.exists()


def test_a_repeated_request_makes_no_second_fork(program: Program) -> None:
    run = forked(program)
    ops = parts_of(run, "01a22696-a1a8-75ab-a9ab-b03c776679f4")
    key = {"Idempotency-Key": "state-2"}
    answers = [program.post_with(key, "threads", ops=ops).json for _ in range(2)]

    assert answers[0] == answers[1]
    assert AgentRun.objects.filter(forked_from=run).count() == 1


def test_a_replaced_write_keeps_no_piece_of_the_earlier_one(program: Program) -> None:
    write = {"kind": "write", "checkpoint": "cp1", "key": "t/-1", "facts": {"task": "t"}}
    put(program, checkpoint(1), {**write, "text": "ab", "index": 0}, {**write, "text": "cd", "index": 1})
    put(program, {**write, "text": "e", "index": 0})

    [row] = listed(program, thread=program.run_id)["checkpoints"]
    assert [each["text"] for each in row["writes"]] == ["e"]


def test_a_page_of_large_values_is_shorter(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_states, "PAGE_SIZE", 20)
    for number in range(3):
        put(program, {**checkpoint(number), "text": "x" * 15})

    page = listed(program, thread=program.run_id)
    assert ([row["id"] for row in page["checkpoints"]], page["before"]) == (["cp2"], "cp2")


@pytest.mark.parametrize(
    "facts", [{"channels": 5}, {"channels": [{}]}, {"metadata": [1]}, {"deltas": 5}, {"parent": []}, {"odd": 1}]
)
def test_unreadable_facts_are_refused(program: Program, facts: dict[str, Any]) -> None:
    answer = put(program, {**checkpoint(1), "facts": facts})
    assert (answer.status, answer.json["code"]) == (422, "invalid_body")


def test_a_thread_with_an_impossible_name_is_empty(program: Program) -> None:
    assert ids(program, thread="a\0b", checkpoint="\0", before="\0", namespace="\0") == []


@pytest.mark.postgres
def test_retention_leaves_a_thread_that_is_being_changed(program: Program) -> None:
    thread_op(program, "put", thread="t", values=[checkpoint(1)])
    Project.objects.filter(pk=program.project.pk).update(retention_days=1)
    GraphThread.objects.update(modified_at=timezone.now() - timedelta(days=2))
    is_locked, may_end = threading.Event(), threading.Event()

    def change() -> None:
        try:
            with transaction.atomic():
                GraphThread.objects.select_for_update().get()
                is_locked.set()
                may_end.wait(30)
        finally:
            connection.close()

    changing = threading.Thread(target=change)
    changing.start()
    try:
        assert is_locked.wait(30)
        assert old_records.delete_sessions() == 0
    finally:
        may_end.set()
        changing.join(30)
    assert old_records.delete_sessions() == 1
