"""The stream of a run's page: rows as HTML, in batches; the other messages; and how it begins and ends."""

from __future__ import annotations

import json
import re

import pytest

from runs.lifecycle import transitions
from runs.models import AgentRun
from runs.pages.timeline import live_cards
from runs.statuses import RunStatus
from tests.support.factories import drive, make_agent, make_run
from tests.support.stream_clients import Follower
from tests.support.timelines import StreamedRun, finish, grow, last_seq
from tests.support.timing import eventually
from timeline.events.run import RunPaused
from timeline.models import Source

ROW = re.compile(r'<li id="([^"]+)"')


def rows_of(reader: Follower) -> list[str]:
    """Return the IDs of all rows received, in order."""
    return [row for message in reader.events("rows") for row in ROW.findall(message.data or "")]


def names(reader: Follower) -> list[str]:
    return [message.event for message in reader.messages if message.data is not None]


def follow(streamed: StreamedRun, after: int = 0, run: AgentRun | None = None, **options: object) -> Follower:
    url = streamed.page_url if run is None else streamed.page_url.replace(str(streamed.run.pk), str(run.pk))
    reader = streamed.listeners.open(f"{url}?afterSeq={after}", streamed.cookie, **options)
    eventually(lambda: reader.messages, why="the stream begins")
    return reader


def caught_up(reader: Follower, last: int) -> None:
    eventually(
        lambda: reader.last_id == str(last) or reader.error, within_s=10, why=lambda: f"{last} after {reader.last_id}"
    )
    assert reader.error is None


def test_rows_come_in_batches_and_once(streamed: StreamedRun) -> None:
    first = last_seq(streamed.run)
    reader = follow(streamed, first)
    last = grow(streamed.run, 50)
    caught_up(reader, last)

    assert rows_of(reader) == [f"e{seq}" for seq in range(first + 1, last + 1)]
    assert len(reader.events("rows")) < 25, "each event travelled alone"
    assert "x.test" in (reader.events("rows")[0].data or "")


def test_a_status_change_is_sent_along_with_its_row(streamed: StreamedRun) -> None:
    reader = follow(streamed, last_seq(streamed.run))
    transitions.move(streamed.run, RunStatus.PAUSED, RunPaused(reason="operator"), source=Source.WEB, reason="operator")
    eventually(lambda: reader.events("status"), why="the status arrives")

    assert reader.events("status")[0].data == "paused"
    caught_up(reader, last_seq(streamed.run))
    assert rows_of(reader) == [f"e{last_seq(streamed.run)}"]


def test_a_page_gets_an_end_event_and_no_204(streamed: StreamedRun) -> None:
    """After any status but 200, htmx reconnects again and again; the event `end` stops it."""
    reader = follow(streamed, last_seq(streamed.run), stop_at_end=True)
    last = finish(streamed.run)
    eventually(lambda: "end" in names(reader), why="the end arrives")
    assert names(reader)[-1] == "end"
    assert reader.events("end")[0].id == str(last)

    late = streamed.listeners.read_to_end(f"{streamed.page_url}?afterSeq={last}", streamed.cookie)
    assert [message.event for message in late if message.data is not None] == ["end"]


def test_a_page_too_far_behind_is_reset(streamed: StreamedRun) -> None:
    grow(streamed.run, live_cards.MAX_BEHIND + 5)
    told = streamed.listeners.read_to_end(f"{streamed.page_url}?afterSeq=1", streamed.cookie)

    [reset] = [message for message in told if message.data is not None]
    assert reset.event == "stream-reset"
    assert json.loads(reset.data or "") == {"last_seq": last_seq(streamed.run)}


def test_a_page_just_within_the_limit_is_not_reset(streamed: StreamedRun) -> None:
    first = last_seq(streamed.run)
    last = grow(streamed.run, live_cards.MAX_BEHIND - 5)
    reader = follow(streamed, first)
    caught_up(reader, last)

    assert rows_of(reader) == [f"e{seq}" for seq in range(first + 1, last + 1)]


def test_line_ends_in_texts_do_not_cut_messages(streamed: StreamedRun) -> None:
    """A CR alone also ends a line of the stream."""
    run = make_run(make_agent(streamed.project), "one\rtwo\r\nthree\n\nevent: end\ndata: four\rid: 99\r\r")
    reader = follow(streamed, 0, run)
    caught_up(reader, last_seq(run))

    assert "end" not in names(reader)
    said = "".join(message.data or "" for message in reader.events("rows"))
    for word in ("one", "two", "three", "event: end", "data: four", "id: 99"):
        assert word in said


@pytest.mark.slow
def test_reconnecting_at_every_event_shows_the_same_rows(streamed: StreamedRun) -> None:
    """Whatever a reader has already, the following events complete it, card by card."""
    run = drive(make_run(make_agent(streamed.project)))
    last = last_seq(run)
    whole = streamed.listeners.read_to_end(
        f"{streamed.page_url.replace(str(streamed.run.pk), str(run.pk))}", streamed.cookie
    )
    known = {row for message in whole if message.event == "rows" for row in ROW.findall(message.data or "")}
    for after in range(0, last, max(1, last // 25)):
        rest = streamed.listeners.read_to_end(
            f"{streamed.page_url.replace(str(streamed.run.pk), str(run.pk))}?afterSeq={after}", streamed.cookie
        )
        assert [message.event for message in rest if message.data is not None][-1] == "end"
        ids = {row for message in rest if message.event == "rows" for row in ROW.findall(message.data or "")}
        assert ids <= known, f"after {after}: {ids - known}"
