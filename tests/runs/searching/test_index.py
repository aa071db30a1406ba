"""The search index behind the log: indexed texts, excluded texts, and each text exactly once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.db import connection
from django.utils import timezone

from agentops.accounts.models import Project
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, SearchEntry, SearchPosition
from runs.upkeep import retention, search_index
from runs.upkeep.retention import RemovalReport
from runs.worker import upkeep
from tests.support.api import said
from tests.support.factories import drive, make_agent, make_project, make_run
from tests.support.run_checks import found, index_all, note, runs_found
from tests.support.secret_samples import CANARIES, RULE_TOKEN, TEXT, add_rules, answer_of, store_raw
from tests.support.timelines import appended_late
from tests.support.upkeep import aged, apply
from timeline import reading
from timeline.models import Event

#: With and without punctuation, and with the letter that replaces `_` in PostgreSQL's index.
MARKED = [
    *("read_file", "read-file", "read.file(x)", "read\ua000file", r"c:\read"),
    *("a b", "ab c$d", "100 % of 'it'", "x→y", "ok", "Ünïcode é"),
]
SHOWN = ("kind", "key", "seq", "step", "name", "status", "is_error", "text", "folded")


def rows(**filters: Any) -> list[tuple[Any, ...]]:
    return list(SearchEntry.objects.filter(**filters).order_by("pk").values_list("pk", *SHOWN))


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


# --- Indexed texts ------------------------------------------------------------------------------------------------


@pytest.mark.every_database
def test_messages_calls_and_events_are_indexed_at_their_location(project: Project) -> None:
    run = drive(make_run(make_agent(project)))
    note(run, "a custom text", build="GREEN")
    index_all()
    run.log.refresh_from_db()

    answer, call = run.messages.filter(role="assistant").earliest("position"), run.tool_calls.get(tool_name="Grep")
    [message] = found(project, '"search for go version"', kinds=("message",))
    assert (message.ref_id, message.name, message.step) == (answer.pk, "assistant", 1)
    assert Event.objects.get(log=run.pk, seq=message.seq).ref_id == answer.pk
    # The arguments and the output are one text.
    [result] = found(project, '"output_mode" "mise.toml:3"', tool="Grep")
    assert (result.ref_id, result.kind, result.status, result.is_error) == (call.pk, "tool_call", "completed", False)
    assert Event.objects.get(log=run.pk, seq=result.seq).ref_id == call.pk
    failed = found(project, "go", errors_only=True)
    assert {(each.kind, each.name, each.status) for each in failed} == {("tool_call", "Edit", "error")}
    [custom] = found(project, "green")
    assert (custom.kind, custom.ref_id, custom.name, custom.seq) == ("event", None, "x.note", run.log.last_seq)
    # Each message and each call is indexed once, without a separate tool result.
    kinds = [row[1] for row in rows()]
    assert kinds.count("message") == run.messages.exclude(role="tool_result").count()
    assert kinds.count("tool_call") == run.tool_calls.count()


@pytest.mark.every_database
def test_search_is_literal(project: Project) -> None:
    texts = [
        "100%",
        "a_b",
        "back\\slash",
        "'; --",
        '5"x',
        "日本語",
        "失败",
        "🙂👩‍💻",
        "שלום עולם",
        "naïve ÉTÉ",
        "<b>",
        "$.x",
    ]
    agent = make_agent(project)
    runs = {text: make_run(agent, f"before {text} after").pk for text in texts}
    make_run(agent, "a1b axb 1000 1005 back 5x 日 本 语 失 败 naive ete b $x 🙃")
    index_all()

    for text, run_id in runs.items():
        typed = text if '"' in text else f'"{text}"'
        for order in ("newest", "relevance"):
            assert runs_found(project, typed, kinds=("message",), order=order) == [run_id], text
    for part in ("失", "עולם", "🙂", "été", "ÏVE", "ack\\sl", "0%", "_b"):
        assert len(runs_found(project, part, kinds=("message",))) >= 1, part
    # No stemming, no synonyms, and NUL as stored.
    assert runs_found(project, "quoting") == []
    note(AgentRun.objects.get(pk=runs["a_b"]), "nul\0nul")
    index_all()
    assert runs_found(project, "nul\ufffdnul") == [runs["a_b"]]


@pytest.mark.every_database
def test_results_contain_the_term_with_any_punctuation(project: Project) -> None:
    note(make_run(make_agent(project)), *MARKED)
    index_all()
    texts = [row.text for row in SearchEntry.objects.filter(name="x.note")]

    marks = [mark for mark in map(chr, range(33, 127)) if not mark.isalnum() and mark != '"']
    parts = [text[at : at + size] for text in MARKED for size in (1, 2, 3, 5, 6) for at in range(len(text))]
    for term in {*parts, *(f"d{mark}f" for mark in marks), *marks, "read_", "_file", "nothing_of"}:
        if '"' not in term and term.strip():
            expected = sorted(text for text in texts if " ".join(term.split()).lower() in text.lower())
            results = found(project, f'"{term}"', kinds=("event",))
            assert sorted(one.excerpt.text for one in results if one.name == "x.note") == expected, term


@pytest.mark.every_database
def test_a_search_by_time_finds_the_same_with_and_without_skipping_parts_of_the_index(project: Project) -> None:
    run, now = make_run(make_agent(project)), timezone.now().replace(microsecond=0)
    hours = [5, 1, 3, 2, 4, 3]
    for block, hour in enumerate(hours):
        SearchPosition.objects.update(entry_id=block * 5000)
        note(run, f"needle {block}")
        index_all()
        SearchEntry.objects.filter(text__contains=f"needle {block}").update(at=now + timedelta(hours=hour))

    for since in (None, *range(7)):
        for until in (None, *range(7)):
            bounds = {
                name: now + timedelta(hours=hour)
                for name, hour in (("since", since), ("until", until))
                if hour is not None
            }
            blocks = [b for b, hour in enumerate(hours) if (since or 0) <= hour < (until if until is not None else 9)]
            results = found(project, "needle", **bounds)
            assert [result.at for result in results] == [now + timedelta(hours=hours[b]) for b in reversed(blocks)]


@pytest.mark.every_database
def test_no_secret_is_in_the_index(project: Project) -> None:
    add_rules(project)
    run = drive(make_run(make_agent(project)))
    parts = [{"part_kind": "text", "content": TEXT}, {"part_kind": "thinking", "content": TEXT, "signature": "abc"}]
    message = answer_of(run)
    AgentRunMessage.objects.filter(pk=message.pk).update(
        content={**message.content, "kind": "response", "parts": parts}
    )
    AgentRunToolCall.objects.filter(run=run).update(input={"text": TEXT, "password": "s3cret-pw"}, output=TEXT)
    store_raw(run)
    index_all()

    stored = "\n".join(str(row) for row in rows())
    assert "[REDACTED:" in stored
    assert [kind for kind, (secret, _) in CANARIES.items() if secret in stored] == []
    assert "s3cret-pw" not in stored
    with connection.cursor() as cursor:
        tables = [name for name in connection.introspection.table_names(cursor) if "search" in name]
        assert len(tables) >= 2
        for table in tables:
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            cells = "\n".join(str(row) for row in cursor.fetchall())
            assert [kind for kind, (secret, _) in CANARIES.items() if secret in cells] == []
    for kind, (secret, _) in CANARIES.items():
        assert found(project, f'"{secret[:150]}"') == [], kind


def test_texts_are_masked_by_the_rules_of_their_project(project: Project) -> None:
    other = make_project("beta")
    add_rules(other)
    own, theirs = make_run(make_agent(project), "own"), make_run(make_agent(other), "theirs")
    for run in (own, theirs):
        # Model output is stored unchanged.
        AgentRunMessage.objects.filter(run=run, role="user").update(content=said(f"needle {RULE_TOKEN}"))
    index_all()

    assert [each.run_id for each in found(project, RULE_TOKEN)] == [own.pk]
    assert found(other, RULE_TOKEN) == []
    assert [each.run_id for each in found(other, "needle")] == [theirs.pk]
    assert RULE_TOKEN not in SearchEntry.objects.get(log=theirs.pk, kind="message").text


def test_a_secret_indexed_by_an_earlier_version_cannot_be_searched(project: Project) -> None:
    run = make_run(make_agent(project), "hello")
    index_all()
    secret = CANARIES["github"][0] if "github" in CANARIES else next(iter(CANARIES.values()))[0]
    SearchEntry.objects.filter(log=run.pk, kind="message").update(text=f"hello {secret}", folded=None)

    for order in ("newest", "relevance"):
        assert found(project, secret[:12], order=order) == []
        [result] = found(project, "hello", order=order, kinds=("message",))
        assert secret not in result.excerpt.text


# --- Once and completely --------------------------------------------------------------------------------------------


@pytest.mark.every_database
def test_a_batch_and_its_position_are_stored_atomically(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_index, "BATCH", 7)
    run = drive(make_run(make_agent(project)))
    # The batch cannot be stored after its position was moved.
    steps = search_index.catch_up()
    assert next(steps) is True
    entry_id = SearchPosition.objects.get().entry_id
    taken = {
        "project": project,
        "log_id": run.pk,
        "kind": "event",
        "name": "x",
        "is_error": False,
        "at": timezone.now(),
    }
    blockers = SearchEntry.objects.bulk_create(
        SearchEntry(pk=entry_id + number, key=f"x{number}", seq=1, text="x", **taken) for number in range(1, 60)
    )

    before = (SearchPosition.objects.get().event_id, rows())
    while next(steps):
        before = (SearchPosition.objects.get().event_id, rows())
    assert (SearchPosition.objects.get().event_id, rows()) == before
    assert before[0] < Event.objects.latest("pk").pk

    SearchEntry.objects.filter(pk__in=[each.pk for each in blockers]).delete()
    index_all()
    entries = rows()
    # After indexing again from the beginning, each entry exists once, with the same ID.
    SearchPosition.objects.update(event_id=0)
    index_all()
    assert [row[0] for row in rows()] == [row[0] for row in entries]
    assert rows() == entries


@pytest.mark.every_database
def test_rebuilding_a_run_restores_missing_entries_and_removes_obsolete_ones(project: Project) -> None:
    run, other = drive(make_run(make_agent(project))), make_run(make_agent(project), "other")
    index_all()
    entries = rows()
    SearchEntry.objects.filter(log=run.pk, kind="tool_call").update(text="wrong", status="planned")
    SearchEntry.objects.filter(pk=entries[-1][0], log=other.pk).update(key="0")
    lost = SearchEntry.objects.filter(log=run.pk, kind="message").earliest("pk")
    SearchEntry.objects.filter(pk=lost.pk).delete()

    count = search_index.rebuild(run.pk)
    search_index.rebuild(other.pk)

    assert count == SearchEntry.objects.filter(log=run.pk).count()
    assert sorted(row[1:] for row in rows()) == sorted(row[1:] for row in entries)
    assert [row[0] for row in rows(log=run.pk)][:-1] == [row[0] for row in entries if row[0] != lost.pk][: count - 1]
    assert sum(search_index.start_over()) == len(entries)
    assert found(project, "go") == []
    index_all()
    assert sorted(row[1:] for row in rows()) == sorted(row[1:] for row in entries)


@pytest.mark.every_database
def test_a_call_is_indexed_with_its_output_when_it_has_ended(project: Project) -> None:
    run = make_run(make_agent(project))
    index_all()
    first = rows()
    drive(run)
    index_all()

    assert rows()[: len(first)] == first
    assert {row[6] for row in rows(kind="tool_call")} == {"completed", "error"}


@pytest.mark.postgres
@pytest.mark.django_db
def test_postgresql_compiles_no_query() -> None:
    """The cost estimate of a short term is so high that JIT compilation would take a hundred times as long."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW jit")
        assert cursor.fetchone() == ("off",)


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_an_event_that_is_committed_late_is_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ID is lower than the ID of an event committed earlier."""
    monkeypatch.setattr(reading, "PATIENCE_S", 0.1)
    project = make_project()
    late, early = make_run(make_agent(project), "late"), make_run(make_agent(project), "early")
    index_all()
    with appended_late(late, "needle"):
        note(early, "needle")
        assert list(search_index.catch_up()) == []
    index_all()

    assert sorted(runs_found(project, "needle")) == sorted([late.pk, early.pk])


@pytest.mark.django_db(transaction=True)
def test_a_task_indexes_new_events() -> None:
    project = make_project()
    run = make_run(make_agent(project), "first needle")

    for number in range(2):
        note(run, f"needle number {number}")
        upkeep.index_texts()
        assert found(project, f'"needle number {number}"')


# --- Deletion -------------------------------------------------------------------------------------------------------


@pytest.mark.every_database
def test_a_deleted_run_is_removed_from_the_index_and_not_indexed_again(project: Project) -> None:
    run, kept = make_run(make_agent(project), "needle"), make_run(make_agent(project), "needle")
    index_all()
    aged(run, 100)
    index_all()
    removal = retention.apply(RemovalReport(project, 90), by="test")
    next(removal)

    # It is hidden before its rows are deleted.
    assert set(runs_found(project, "needle")) == {kept.pk}
    removal.close()
    note(kept, "another needle")
    SearchPosition.objects.update(event_id=0)
    index_all()
    apply(project)
    assert not SearchEntry.objects.filter(log=run.pk).exists()
    assert set(runs_found(project, "needle")) == {kept.pk}
    assert len(runs_found(project, "needle")) == 3


def test_the_lag_of_the_index_is_known(project: Project) -> None:
    run = make_run(make_agent(project), "hello")
    index_all()
    note(run, "new")

    assert search_index.lag_s() == 0
    with time_machine.travel(timezone.now() + timedelta(seconds=90)):
        assert search_index.lag_s() in (89, 90)
        index_all()
