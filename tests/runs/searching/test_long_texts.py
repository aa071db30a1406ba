"""Long texts are searchable up to a limit: they are indexed in overlapping parts, and each text is one result."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agentops.accounts.models import Project, Role
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, SearchEntry, SearchPosition
from runs.queries.json_lists import RowSpan
from runs.queries.searching import index_entries
from runs.queries.searching.index_entries import HEAD, LIMIT, PART, TAIL, part_key, part_number, text_key
from runs.queries.searching.search_results import Search, SearchOrder, search
from runs.queries.searching.search_terms import MAX_TEXT, parse
from runs.upkeep import search_index
from runs.upkeep.search_texts import masked_parts
from tests.support.api import said
from tests.support.factories import make_agent, make_person, make_project, make_run
from tests.support.run_checks import found, index_all, note
from tests.support.secret_samples import CANARIES
from tests.support.upkeep import aged, apply
from timeline.models import Event


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


def run_that_said(project: Project, text: str) -> AgentRun:
    """Create a run whose first message is this text, stored unchanged like model output."""
    run = make_run(make_agent(project), "first")
    AgentRunMessage.objects.filter(run=run, role="user").update(content=said(text))
    return run


def numbered(length: int) -> str:
    """Return a text of this length in which each position is unique."""
    return "".join(f"word{number:06} " for number in range(length // 11 + 1))[:length]


def index_again() -> None:
    """Reindex everything, as the workers do after an upgrade's migration."""
    SearchPosition.objects.create(pk=SearchPosition.OLDER)
    assert search_index.is_extending()
    index_all()
    assert not search_index.is_extending()


# --- Parts ----------------------------------------------------------------------------------------------------------


def test_each_term_is_whole_in_one_part() -> None:
    for length in (PART, PART + 1, PART + MAX_TEXT, 2 * PART, 100_000):
        text = numbered(length).rstrip()
        parts = masked_parts(text)
        assert max(map(len, parts)) <= PART + len(index_entries.GAP)
        assert all(any(text[at : at + MAX_TEXT] in part for part in parts) for at in range(0, len(text), 7))
    assert masked_parts("a\n\n b\t c") == ["a b c"]
    assert len(masked_parts("x" * PART)) == 1


def test_the_beginning_and_the_end_of_a_text_beyond_the_limit_are_indexed() -> None:
    first, *others = masked_parts(f"FIRST {'x y ' * 300_000} LAST")

    assert (first[:9], first[-8:], len(first)) == ("FIRST x y", "x y LAST", HEAD + TAIL + len(index_entries.GAP))
    assert len(others) < index_entries.MAX_PARTS - 1
    text = numbered(2 * LIMIT)
    parts = masked_parts(text)
    assert any(text[LIMIT - 100 : LIMIT - 50] in part for part in parts)
    assert not any(text[LIMIT + 100 : LIMIT + 150] in part for part in parts)


def test_keys_of_parts_fit_into_the_column() -> None:
    for key in ("01a21519-2124-71bd-9de5-495b9d9a7182", "7", str(2**63)):
        for number in (0, 1, index_entries.MAX_PARTS):
            part = part_key(key, number)
            assert (text_key(part), part_number(part)) == (key, number)
            assert len(part) <= SearchEntry._meta.get_field("key").max_length


# --- Results --------------------------------------------------------------------------------------------------------


@pytest.mark.every_database
def test_a_match_in_the_middle_of_a_long_text_has_an_excerpt(project: Project) -> None:
    text = numbered(100_000)
    run = run_that_said(project, f"{text[:50_000]} needle \N{LATIN SMALL LETTER E WITH ACUTE} {text[50_000:]}")
    other = run_that_said(project, "short")
    note(other, f"{text[:30_000]} in an event {text[30_000:60_000]}")
    index_all()

    for order in ("newest", "relevance"):
        [result] = found(project, "NEEDLE é", order=order)
        assert (result.run_id, result.kind, result.ref_id) == (run.pk, "message", run.messages.earliest("position").pk)
        assert f"{text[49_990:50_000]} needle é" in result.excerpt.text
        assert [word for word, is_match in result.excerpt.pieces() if is_match] == ["needle", "é"]
    for at in (0, HEAD - 5, HEAD + PART - 10, 60_005, 98_000, 99_980):
        word = text[at : at + 40].split()[1]
        assert {each.run_id for each in found(project, word)} >= {run.pk}, word
    [event] = found(project, '"in an event"', kinds=("event",), run_id=other.pk)
    assert (event.ref_id, event.run_id) == (None, other.pk)


@pytest.mark.every_database
def test_a_text_is_one_result_however_many_parts_match(project: Project) -> None:
    frequent = [run_that_said(project, "frequent needle " * 4000).pk for _ in range(3)]
    twice = run_that_said(project, f"early needle {numbered(40_000)} late needle {numbered(40_000)}").pk
    index_all()

    assert [each.run_id for each in found(project, "needle")] == [twice, *reversed(frequent)]
    [first] = found(project, '"needle"', run_id=twice)
    assert "early needle" in first.excerpt.text
    [late] = found(project, '"late needle"')
    assert "late needle" in late.excerpt.text
    for order in SearchOrder:
        query, rows, pages = Search(project.pk, parse("needle"), order=order), None, []
        while rows is None or rows.items:
            rows = search(query, RowSpan(rows.position_of(-1) if rows else (), limit=1))
            pages += [each.run_id for each in rows.items]
        assert sorted(pages) == sorted([twice, *frequent])


@pytest.mark.every_database
def test_hostile_text_is_literal_in_the_middle_too(project: Project) -> None:
    texts = ["'; DROP TABLE agent_runs; --", "50%_off", "<img src=x>", "back\\slash", "$1 %s {0}"]
    runs = {text: run_that_said(project, f"{numbered(30_000)} {text} {numbered(30_000)}").pk for text in texts}
    index_all()

    for text, run_id in runs.items():
        assert [each.run_id for each in found(project, f'"{text}"')] == [run_id], text
    assert found(project, '"50a_off"') == found(project, '"50%aoff"') == []


@pytest.mark.every_database
def test_no_secret_can_be_searched_in_the_middle_or_across_parts(project: Project) -> None:
    secret = CANARIES["github"][0] if "github" in CANARIES else next(iter(CANARIES.values()))[0]
    for border in (HEAD - 5, HEAD + PART - MAX_TEXT - 5, 50_000):
        run_that_said(project, f"{'y ' * (border // 2)} {secret} {numbered(60_000)}")
    index_all()

    assert found(project, f'"{secret[:150]}"') == found(project, secret[:12]) == []
    assert not SearchEntry.objects.filter(text__contains=secret[4:16]).exists()


def test_the_page_explains_the_limit_and_missing_older_texts(project: Project, client: Client) -> None:
    run_that_said(project, "hello")
    index_all()
    client.force_login(make_person(project, Role.VIEWER))
    bounds = "Of texts longer than 262,144 characters, the first 262,144 and the last 2,000 are searched."

    for query in ({}, {"q": "needle"}):
        page = client.get("/p/alpha/search", query).content.decode()
        assert bounds in page
        assert "indexed again after an upgrade" not in page
    SearchPosition.objects.create(pk=SearchPosition.OLDER)
    assert "indexed again after an upgrade" in client.get("/p/alpha/search", {"q": "needle"}).content.decode()


# --- Writing --------------------------------------------------------------------------------------------------------


@pytest.mark.every_database
def test_a_call_that_becomes_longer_and_shorter_leaves_no_part_behind(project: Project) -> None:
    run = run_that_said(project, "hello")
    message = run.messages.earliest("position")
    call = AgentRunToolCall.objects.create(
        run=run,
        message=message,
        call_id="1",
        tool_name="Read",
        step_number=1,
        input={"path": "needle"},
        created_at=timezone.now(),
    )
    index_all()
    sizes = []
    for length in (0, 40_000, 40_000, 20_000, 70_000, 0):
        AgentRunToolCall.objects.filter(pk=call.pk).update(output=f"{numbered(length)} end")
        search_index.rebuild(run.pk)
        entries = list(SearchEntry.objects.filter(log=run.pk, kind="tool_call").order_by("pk"))
        numbers = [part_number(entry.key) for entry in entries]
        assert numbers == list(reversed(range(len(entries))))
        assert [entry.pk for entry in entries] == list(range(entries[0].pk, entries[0].pk + len(entries)))
        [result] = found(project, '"word000001" needle' if length else "needle", tool="Read")
        assert result.ref_id == call.pk
        sizes.append(len(entries))
    assert sizes[0] == sizes[-1] == 1
    assert sizes[1] == sizes[2] > sizes[3] > 1


@pytest.mark.every_database
def test_texts_indexed_by_an_earlier_version_are_reindexed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_index, "BATCH", 3)
    old = run_that_said(project, f"{numbered(30_000)} needle {numbered(30_000)}")
    others = [run_that_said(project, f"short {number}") for number in range(3)]
    index_all()
    whole = sorted(SearchEntry.objects.values_list("log", "key", "text"))
    SearchEntry.objects.filter(key__contains=".").delete()
    kept = set(SearchEntry.objects.exclude(log=old.pk).values_list("pk", flat=True))
    assert found(project, "needle") == []

    index_again()
    assert [each.run_id for each in found(project, "needle")] == [old.pk]
    assert sorted(SearchEntry.objects.values_list("log", "key", "text")) == whole
    assert set(SearchEntry.objects.exclude(log=old.pk).values_list("pk", flat=True)) == kept
    # New texts come first: they do not wait for the older ones.
    SearchPosition.objects.create(pk=SearchPosition.OLDER)
    note(others[0], "quite new")
    steps = search_index.catch_up()
    assert next(steps)
    assert len(found(project, '"quite new"')) == 1
    assert all(steps)
    assert SearchPosition.objects.get().event_id == Event.objects.latest("pk").pk
    # Deleting all entries ends the reindexing.
    SearchPosition.objects.create(pk=SearchPosition.OLDER)
    assert sum(search_index.start_over()) > 0
    index_all()
    assert len(found(project, "needle")) == 1


@pytest.mark.every_database
def test_long_texts_are_stored_whole_in_transactions_of_bounded_size(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "MAX_STORED", 10_000)
    runs = [run_that_said(project, f"{numbered(50_000)} needle {number}") for number in range(3)]
    index_all()

    assert [each.run_id for each in found(project, "needle")] == [run.pk for run in reversed(runs)]
    for run in runs:
        keys = list(SearchEntry.objects.filter(log=run.pk, kind="message").order_by("pk").values_list("pk", "key"))
        assert [pk for pk, _ in keys] == list(range(keys[0][0], keys[0][0] + len(keys)))


@pytest.mark.every_database
def test_retention_removes_all_parts(project: Project) -> None:
    run = run_that_said(project, f"{numbered(30_000)} needle {numbered(30_000)}")
    index_all()
    assert SearchEntry.objects.filter(log=run.pk, key__contains=".").count() > 5
    aged(run, 100)
    apply(project)

    assert not SearchEntry.objects.filter(log=run.pk).exists()
    assert found(project, "needle") == []
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM agent_run_search_grams WHERE agent_run_search_grams MATCH '\"nee\"'")
            assert cursor.fetchone() == (0,)


@pytest.mark.every_database
def test_the_number_of_queries_does_not_depend_on_the_number_of_parts(project: Project) -> None:
    counts = []
    for length in (20_000, 200_000):
        run_that_said(project, f"{numbered(length)} needle {numbered(length)}")
        index_all()
        with CaptureQueriesContext(connection) as queries:
            assert found(project, "needle")
        counts.append(len(queries))
    assert counts[0] == counts[1]
