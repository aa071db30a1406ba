"""Forks of forks, growing sessions, and originals imported late or never: each model call is counted once."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pytest

from agentops.accounts.models import Project
from runs.external.importers.codex_history import CallNames
from runs.external.ingest import Sender, record
from runs.models import AgentRun
from tests.support.clients import WatchedSite
from tests.support.factories import make_project
from tests.support.recordings import import_path, run_of, used, used_by

pytestmark = pytest.mark.django_db
BEGIN = datetime(2026, 1, 21, 12, 0, tzinfo=UTC)
#: Tokens of each call: input and output.
CALL = (100, 10)


def uuid_of(name: str) -> str:
    return str(uuid5(NAMESPACE_URL, name))


A, B, C, D = map(uuid_of, "ABCD")


@pytest.fixture
def project() -> Project:
    return make_project("copies")


@pytest.fixture
def site(tmp_path: Path) -> WatchedSite:
    (tmp_path / "sessions").mkdir()
    return WatchedSite(tmp_path / "sessions")


def claude(folder: Path, session: str, turns: Sequence[str], **copied: Any) -> Path:
    """Write a session with a turn for each text. `copied`: the number of copied turns, and extra fields of their lines.

    `lines`: a prefix that makes the IDs of its lines unique.
    """
    lines: list[dict[str, Any]] = []
    count, ids = copied.pop("count", 0), copied.pop("lines", "")
    for number, text in enumerate(turns):
        fields = copied if number < count else {}
        at = BEGIN + timedelta(minutes=number)
        usage = {"input_tokens": CALL[0], "output_tokens": CALL[1]}
        said = {"role": "assistant", "id": f"msg_{text}", "model": "claude-sonnet-4-5", "usage": usage}
        said |= {"content": [{"type": "text", "text": f"{text}: done"}], "stop_reason": "end_turn"}
        for kind, message in (("user", {"role": "user", "content": text}), ("assistant", said)):
            line = {"type": kind, "sessionId": session, "uuid": uuid_of(f"{ids}{kind} {text}"), "message": message}
            lines.append({**line, "timestamp": at.isoformat(), "requestId": f"req_{text}", **fields})
    return write(folder / f"{session}.jsonl", lines)


def codex(folder: Path, thread: str, turns: Sequence[tuple[str, int]], **meta: Any) -> Path:
    """Write a rollout with a turn for each text and minute. Turns before the minute of its start are its history.

    `meta`: fields of its first line. `made`: the minute of its start. `times`: turns of the history keep their times
    (kept), have the start (new), or follow it second by second (slow).
    """
    made, times = meta.pop("made", 0), meta.pop("times", "kept")
    at = BEGIN + timedelta(minutes=made)
    lines = [{"timestamp": at, "type": "session_meta", "payload": {"id": thread, "timestamp": at.isoformat(), **meta}}]
    total = [0, 0]
    written = 0
    for text, minute in turns:
        total = [total[0] + CALL[0], total[1] + CALL[1]]
        begin = BEGIN + timedelta(minutes=minute, seconds=1)
        at_of = [begin + timedelta(seconds=step) for step in range(5)]
        if minute < made and times != "kept":
            at_of = [at + timedelta(seconds=written + step if times == "slow" else 0) for step in range(5)]
            written += 5
        info = {
            name: dict(zip(("input_tokens", "output_tokens"), tokens, strict=True))
            for name, tokens in (("total_token_usage", total), ("last_token_usage", CALL))
        }
        said = ("turn_context", {"model": "gpt-5-codex"}), ("event_msg", {"type": "user_message", "message": text})
        items = [("user", "input_text", text), ("assistant", "output_text", f"{text}: done")]
        answered = [
            ("response_item", {"type": "message", "role": role, "content": [{"type": kind, "text": content}]})
            for role, kind, content in items
        ]
        every = [*said, *answered, ("event_msg", {"type": "token_count", "info": info})]
        lines += [
            {"timestamp": time, "type": type_, "payload": payload}
            for time, (type_, payload) in zip(at_of, every, strict=True)
        ]
    return write(folder / f"rollout-2026-01-21T12-00-00-{thread}.jsonl", lines)


def write(path: Path, lines: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line, default=lambda value: value.isoformat()) + "\n" for line in lines))
    return path


def total(calls: int) -> tuple[int, int, int]:
    return calls * CALL[0], calls * CALL[1], calls


@pytest.mark.parametrize("order", list(permutations([A, B, C])))
def test_forks_of_forks_of_claude_code(project: Project, tmp_path: Path, order: Sequence[str]) -> None:
    turns = {A: ["one", "two"], B: ["one", "two", "three"], C: ["one", "two", "three", "four"]}
    for session in order:
        import_path(project, claude(tmp_path, session, turns[session]))

    assert used(project) == total(4)
    first, second, third = (run_of(project, session) for session in (A, B, C))
    assert [used_by(run)[2] for run in (first, second, third)] == [2, 1, 1]
    assert [run.forked_from for run in (first, second, third)] == [None, first, second]
    assert [run.title for run in (first, second, third)] == ["one", "three", "four"]


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_a_copy_with_different_line_ids(project: Project, tmp_path: Path, order: Sequence[str]) -> None:
    for session in order:
        turns = ["one", "two"] if session == A else ["one", "two", "three"]
        import_path(project, claude(tmp_path, session, turns, lines=session))

    assert used(project) == total(3)
    first, second = run_of(project, A), run_of(project, B)
    assert [used_by(run)[2] for run in (first, second)] == [2, 1]
    assert (first.forked_from, second.forked_from, second.title) == (None, first, "three")
    assert second.external.copied_until == 4


@pytest.mark.parametrize("order", list(permutations([A, B, C])))
@pytest.mark.parametrize("field", ["sessionId", "forkedFrom"])
def test_forks_that_name_their_session(project: Project, tmp_path: Path, order: Sequence[str], field: str) -> None:
    def copied(session: str) -> dict[str, Any]:
        return {field: session if field == "sessionId" else {"sessionId": session, "messageUuid": uuid_of("x")}}

    # Both continue after the fork.
    files = {A: (["one", "two"], {}), B: (["one", "three"], copied(A)), C: (["one", "four"], copied(A))}
    for session in order:
        turns, fields = files[session]
        import_path(project, claude(tmp_path, session, turns, count=1, **fields))

    assert used(project) == total(4)
    first, second, third = (run_of(project, session) for session in (A, B, C))
    assert [used_by(run)[2] for run in (first, second, third)] == [2, 1, 1]
    assert [run.forked_from for run in (first, second, third)] == [None, first, first]
    assert [(run.title, run.external.copied_until) for run in (second, third)] == [("three", 2), ("four", 2)]


@pytest.mark.parametrize("order", list(permutations([A, B, C])))
@pytest.mark.parametrize("times", ["kept", "new", "slow"])
def test_forks_of_forks_of_codex(project: Project, tmp_path: Path, order: Sequence[str], times: str) -> None:
    spawn = {"source": {"subagent": {"thread_spawn": {"parent_thread_id": B}}}}
    files: dict[str, tuple[list[tuple[str, int]], dict[str, Any]]] = {
        A: ([("one", 0), ("two", 1), ("late", 9)], {}),
        B: ([("one", 0), ("two", 1), ("three", 5)], {"forked_from_id": A, "made": 4}),
        C: ([("one", 0), ("two", 1), ("three", 5), ("four", 7)], {**spawn, "forked_from_id": B, "made": 6}),
    }
    for thread in order:
        turns, meta = files[thread]
        import_path(project, codex(tmp_path, thread, turns, times=times, **meta))

    assert used(project) == total(5)
    first, second, third = (run_of(project, thread) for thread in (A, B, C))
    assert [used_by(run)[2] for run in (first, second, third)] == [3, 1, 1]
    assert [(run.forked_from, run.parent_run) for run in (first, second, third)] == [
        (None, None),
        (first, None),
        (None, second),
    ]
    assert [run.title for run in (first, second, third)] == ["one", "three", "four"]


def test_two_copies_of_a_missing_original(project: Project, tmp_path: Path) -> None:
    import_path(project, claude(tmp_path, B, ["one", "two"], count=1, sessionId=A))
    import_path(project, claude(tmp_path, C, ["one", "three"], count=1, sessionId=A))
    import_path(project, codex(tmp_path, B, [("one", 0), ("two", 5)], forked_from_id=A, made=4))
    import_path(project, codex(tmp_path, C, [("one", 0), ("three", 5)], parent_thread_id=A, made=4))

    assert used(project) == total(6)


def test_two_similar_sessions_are_separate(project: Project, tmp_path: Path) -> None:
    for thread in (A, B):
        import_path(project, codex(tmp_path, thread, [("one", 0), ("two", 1)]))

    assert used(project) == total(4)
    assert not AgentRun.objects.filter(project=project, forked_from__isnull=False).exists()


@pytest.mark.parametrize("is_copy_first", [True, False])
def test_both_grow_while_watched(site: WatchedSite, is_copy_first: bool) -> None:
    order = [(B, ["one"], ["one", "three"]), (A, ["one"], ["one", "two"])]
    for turns in (1, 2):
        for session, *versions in order if is_copy_first else reversed(order):
            claude(site.folder, session, versions[turns - 1], count=1, **({"sessionId": A} if session == B else {}))
            site.round()
    site.settle()

    assert used(site.project) == total(3)
    assert run_of(site.project, B).forked_from == run_of(site.project, A)
    assert used_by(run_of(site.project, A)) == total(2)


def test_a_copy_contains_an_answer_that_the_original_has_only_begun(project: Project, tmp_path: Path) -> None:
    whole = claude(tmp_path, A, ["one", "two"]).read_text().splitlines(keepends=True)
    last = json.loads(whole[3])
    begun = {**last, "message": {**last["message"], "usage": {"input_tokens": 100, "output_tokens": 1}}}
    rest = {**last, "uuid": uuid_of("rest"), "parentUuid": last["uuid"]}
    import_path(project, claude(tmp_path, B, ["one", "two", "three"]))
    first = tmp_path / f"{A}.jsonl"
    first.write_text("".join([*whole[:3], json.dumps(begun) + "\n"]))
    import_path(project, first)
    assert used(project) == total(3)

    first.write_text("".join([*whole[:3], json.dumps(begun) + "\n", json.dumps(rest) + "\n"]))
    import_path(project, first)

    assert used(project) == total(3)
    assert used_by(run_of(project, A)) == total(2)


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_codex_token_counts_as_text(project: Project, tmp_path: Path, order: Sequence[str]) -> None:
    turns = {A: [("one", 0)], B: [("one", 0), ("two", 5)]}
    for thread in order:
        file = codex(tmp_path, thread, turns[thread], **({"forked_from_id": A, "made": 4} if thread == B else {}))
        file.write_text(re.sub(r'(_tokens": )(\d+)', r'\1"\2"', file.read_text()))
        import_path(project, file)

    assert used(project) == total(2)


@pytest.mark.parametrize("usage", [{}, {"input_tokens": True}, {"input_tokens": "many"}])
def test_a_count_without_a_number_identifies_no_call(usage: dict[str, Any]) -> None:
    names = CallNames([A])
    assert names.next({"total_token_usage": usage}, is_copied=False) == ()
    assert names.next({"total_token_usage": {"input_tokens": 7.0}}, is_copied=False) == (f"codex:{A}:7.0.0.0.0",)


def test_a_fork_cannot_be_the_parent_of_its_origin(project: Project, tmp_path: Path) -> None:
    import_path(project, codex(tmp_path, B, [("one", 0)]))
    import_path(project, codex(tmp_path, A, [("one", 0), ("two", 5)], forked_from_id=B, made=4))

    import_path(project, codex(tmp_path, B, [("one", 0)], parent_thread_id=A))

    origin, fork = run_of(project, B), run_of(project, A)
    assert (fork.forked_from, origin.parent_run) == (origin, None)


@pytest.mark.parametrize("field", ["forked_from_id", "parent_thread_id"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_reported_by_a_runner_is_not_an_origin(
    project: Project, tmp_path: Path, field: str, is_first: bool
) -> None:
    def post() -> None:
        started = {"runId": f"codex:{A}", "type": "run.started", "payload": {}}
        assert [result.error for result in record(Sender(project, "key:test"), [started])] == [None]

    if is_first:
        post()
    import_path(project, codex(tmp_path, B, [("one", 0), ("two", 5)], made=4, **{field: A}))
    if not is_first:
        post()
        import_path(project, codex(tmp_path, B, [("one", 0), ("two", 5), ("three", 6)], made=4, **{field: A}))

    run = run_of(project, B)
    assert (run.forked_from, run.parent_run) == (None, None)
