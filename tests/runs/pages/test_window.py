"""Test which part of a log a page shows, and the number of queries for logs of any length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from runs.models import AgentRun
from runs.pages.timeline import window
from runs.pages.timeline.minimap import COLUMNS, minimap_of
from runs.pages.timeline.window import ROWS
from tests.support.factories import drive, make_agent, make_run
from tests.support.pages import ParsedPage
from tests.support.timelines import live_messages, of_window, painted, recorded, told
from timeline import log
from timeline.events import Show
from timeline.log import Entry
from timeline.models import Log, Source

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.breaks_invariants("events that are made to be shown, without rows"),
]


@pytest.fixture
def run() -> AgentRun:
    return make_run(make_agent(), "Look into it.")


def grow(run: AgentRun, steps: int, *, calls: int = 1, deltas: int = 0) -> int:
    """Append steps as an external runner reports them, and return the last seq."""
    entries: list[Entry] = []
    first = log.events_of(run.pk).exclude(step=None).count() // (2 + 2 * calls + deltas) + 2
    for step in range(first, first + steps):
        entries.append(Entry({}, type="llm.turn.start", step=step))
        entries += [Entry({"text": f"{step}.{n} "}, type="llm.text.delta", step=step) for n in range(deltas)]
        asked = [{"id": f"c{n}", "name": "grep"} for n in range(calls)]
        entries.append(Entry({"text": f"answer {step}", "tool_calls": asked}, type="llm.turn.end", step=step))
        for n in range(calls):
            call = {"call_id": f"c{n}", "tool_name": "grep"}
            entries.append(Entry(call, type="tool.start", step=step))
            entries.append(Entry({**call, "output": f"found {step}.{n}"}, type="tool.end", step=step))
    for start in range(0, len(entries), 500):
        with transaction.atomic():
            log.append(run.pk, entries[start : start + 500], source=Source.INGEST)
    run.log.refresh_from_db()
    return run.log.last_seq


def queries(act: Callable[[], Any]) -> int:
    with CaptureQueriesContext(connection) as captured:
        act()
    return len(captured)


def rows_of(shown: window.Window) -> list[str]:
    return [item.id for item in shown.items]


def test_a_page_of_a_short_log_starts_at_its_first_event(run: AgentRun) -> None:
    last = grow(run, 3)

    shown = window.newest(run.pk, last)

    assert shown.older is None
    assert shown.at_end
    assert shown.last_seq == last
    assert rows_of(shown)[0] == "e1"


def test_a_log_without_events_is_empty(run: AgentRun) -> None:
    assert window.newest(Log.objects.create(project=run.project).pk, 0) == window.Window([], 0, None)


def test_a_page_of_a_long_log_starts_at_a_step_near_its_end(run: AgentRun) -> None:
    last = grow(run, 300, deltas=3)

    shown = window.newest(run.pk, last)

    ids = rows_of(shown)
    assert ROWS <= len(ids) <= ROWS + 20
    first = shown.items[0]
    assert first.id == f"e{first.seq}"
    assert shown.older == first.seq
    # It is cut between two steps: each answer and each call is complete.
    assert ParsedPage(f'<ol id="timeline">{of_window(shown)}</ol>').timeline.all("is-streaming", "is-running") == []
    assert ids[-1].startswith("call-")


def test_older_pages_reach_the_start_without_gap_or_repetition(run: AgentRun) -> None:
    last = grow(run, 400, calls=2, deltas=1)
    everything = [item.id for item in painted_whole(run)]

    shown = window.newest(run.pk, last)
    ids = rows_of(shown)
    pages = 1
    while shown.older is not None:
        shown = window.before(run.pk, shown.older, last, joins=True)
        assert not shown.at_end
        ids = rows_of(shown) + ids
        pages += 1

    assert ids == everything
    assert len(ids) == len(set(ids))
    assert pages > 4


def painted_whole(run: AgentRun) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "ROWS", 10**6)
        patch.setattr(window, "SCAN", 10**6)
        return window.newest(run.pk, run.log.last_seq).items


def test_newer_pages_reach_the_end_without_gap(run: AgentRun) -> None:
    last = grow(run, 400, calls=2, deltas=1)
    everything = [item.id for item in painted_whole(run)]

    shown = window.after(run.pk, 0, last)
    ids = rows_of(shown)
    pages = 1
    while shown.newer is not None:
        shown = window.after(run.pk, shown.newer, last)
        # Each page starts with a step, so that no card is split.
        assert shown.items[0].id == f"e{shown.items[0].seq}"
        ids += rows_of(shown)
        pages += 1

    assert ids == everything
    assert (shown.last_seq, shown.at_end) == (last, True)
    assert pages > 4


def test_a_step_has_a_position_and_the_minimap_shows_errors_and_waits(run: AgentRun) -> None:
    last = grow(run, 300)
    wrong = told(run, "tool.end", {"call_id": "x", "error": "broke"}, step=301)
    told(run, "run.waiting", {"reason": "approval"})
    run.log.refresh_from_db()

    assert window.start_of_step(run.pk, 150) == next(e.seq for e in log.events_of(run.pk) if e.step == 150)
    assert window.start_of_step(run.pk, 10**17) is None
    strip = minimap_of(run.pk, run.log.last_seq)
    assert len(strip.columns) == strip.width == COLUMNS
    assert (strip.last_step, strip.summary) == (301, "1 error, 1 wait")
    assert [column.seq for column in strip.columns if column.errors] == [wrong]
    assert {column.kind for column in strip.columns} == {"error", "step"}
    assert queries(lambda: minimap_of(run.pk, last)) == 2
    assert minimap_of(run.pk, 0).width == 0


def test_a_card_that_ends_on_a_newer_page_appears_only_there(run: AgentRun) -> None:
    start = told(run, "tool.start", {"call_id": "slow", "tool_name": "build"}, step=1)
    last = grow(run, ROWS // 2)
    end = told(run, "tool.end", {"call_id": "slow", "tool_name": "build", "output": "built"}, step=1)
    shown = window.newest(run.pk, end)
    assert shown.older is not None
    assert shown.older > start

    above = window.before(run.pk, shown.older, end, joins=True)
    alone = window.before(run.pk, shown.older, end)

    slow = next(item.id for item in alone.items if item.seq == start)
    assert slow in rows_of(shown)
    assert slow not in rows_of(above)
    # A separate page shows how the call ended, although the end is outside the page.
    assert "built" in ParsedPage(f'<ol id="timeline">{of_window(alone)}</ol>').timeline.words
    assert last < end


def test_the_row_of_an_event_is_marked_and_in_the_middle_of_the_page(run: AgentRun) -> None:
    last = grow(run, 300)

    shown = window.around(run.pk, 700, last)

    [target] = [item for item in shown.items if item.is_target]
    assert target.seq in {699, 700}
    assert not shown.at_end
    assert shown.older is not None
    place = list(shown.items).index(target)
    assert place > ROWS // 4
    assert len(shown.items) - place > ROWS // 4
    assert len(shown.items) < 2 * ROWS


@pytest.mark.parametrize("type_", ["llm.text.delta", "llm.turn.end", "tool.end", "tool.start", "llm.turn.start"])
def test_an_event_without_a_separate_row_marks_its_card(run: AgentRun, type_: str) -> None:
    last = grow(run, 5, deltas=4)
    event = log.events_of(run.pk).filter(type=type_, step=4).first()
    assert event is not None

    shown = window.around(run.pk, event.seq, last)

    [target] = [item for item in shown.items if item.is_target]
    assert target.id == "turn-4" if type_.startswith("llm.") else target.id.startswith("call-")
    assert shown.at_end


def test_every_event_of_a_recorded_run_has_a_row() -> None:
    run = drive(recorded("claude-code-5c"))

    for seq in range(1, run.log.last_seq + 1):
        shown = window.around(run.pk, seq, run.log.last_seq)
        assert sum(item.is_target for item in shown.items) == 1, seq


@pytest.mark.parametrize("show", [Show.MESSAGES, Show.TOOLS, Show.ERRORS])
def test_a_filter_shows_only_its_rows(show: Show) -> None:
    run = drive(recorded("claude-code-7e"))
    last = run.log.last_seq
    everything = painted(run)

    ids = rows_of(window.newest(run.pk, last, show))

    wanted = {
        Show.MESSAGES: lambda row: row.classes & {"step", "card-user", "card-system", "card-assistant", "row-message"},
        Show.TOOLS: lambda row: row.classes & {"card-tool"},
        Show.ERRORS: lambda row: "is-error" in row.classes,
    }[show]
    assert ids == [row.id for row in everything.rows if wanted(row)]
    assert ids


def test_filtered_pages_reach_the_start(run: AgentRun) -> None:
    grow(run, 260)
    told(run, "error", {"error": "no"})
    last = grow(run, 260)

    shown = window.newest(run.pk, last, Show.TOOLS)
    ids = rows_of(shown)
    while shown.older is not None:
        shown = window.before(run.pk, shown.older, last, Show.TOOLS, joins=True)
        ids = rows_of(shown) + ids

    assert len(ids) == len(set(ids)) == 520
    assert len(rows_of(window.newest(run.pk, last, Show.ERRORS))) == 1


@pytest.mark.parametrize("act", ["newest", "before", "after", "around", "live"])
def test_the_query_count_is_the_same_for_twenty_and_two_hundred_rows(run: AgentRun, act: str) -> None:
    def look() -> int:
        last = run.log.last_seq
        acts: dict[str, Callable[[], Any]] = {
            "newest": lambda: window.newest(run.pk, last),
            "before": lambda: window.before(run.pk, last - 3, last),
            "after": lambda: window.after(run.pk, last - 9, last),
            "around": lambda: window.around(run.pk, last - 9, last),
            "live": lambda: live_messages(run, last - 15),
        }
        return queries(acts[act])

    grow(run, 8, deltas=2)
    few = look()
    grow(run, 300, deltas=2)

    assert look() <= few
    assert few <= 7


def test_a_long_streamed_answer_shows_its_end(run: AgentRun) -> None:
    told(run, "llm.turn.start", step=1)
    with transaction.atomic():
        pieces = [Entry({"text": f"piece {n:04} " + "x" * 60}, type="llm.text.delta", step=1) for n in range(2500)]
        log.append(run.pk, pieces, source=Source.INGEST)
    run.log.refresh_from_db()

    shown = painted(run)

    text = shown.element("turn-1-text").text
    assert text.startswith("…")
    assert text.endswith("piece 2499 " + "x" * 60)
    assert len(text) < 70_000


def test_streamed_pieces_do_not_count_as_rows(run: AgentRun) -> None:
    """A log in which nine of ten events are streamed pieces is paginated by its rows."""
    last = grow(run, 250, deltas=20)

    shown = window.newest(run.pk, last)

    assert ROWS <= len(shown.items) <= ROWS + 20


@pytest.mark.postgres
def test_a_window_uses_the_index(run: AgentRun) -> None:
    last = grow(run, 1500, deltas=4)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE agent_run_events")

    with CaptureQueriesContext(connection) as captured:
        window.newest(run.pk, last)

    for query in captured:
        if 'FROM "agent_run_events"' not in query["sql"]:
            continue
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {query['sql']}")
            plan = "\n".join(row[0] for row in cursor.fetchall())
        assert "event_seq_once" in plan, plan
        # The tables of messages and calls, in which texts are looked up by their IDs, are small here.
        assert "Seq Scan on agent_run_events" not in plan, plan
