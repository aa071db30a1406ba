"""A log that changed behind a reader's cursor (restored, pruned or deleted): the reader gets a reset."""

from __future__ import annotations

import json

import pytest

from tests.support.stream_clients import Follower, heard
from tests.support.timelines import StreamedRun, grow, rewind
from tests.support.timing import eventually
from timeline.models import Event
from timeline.tombstones import allow_changes


def resets(reader: Follower) -> list[int]:
    return [json.loads(message.data or "")["last_seq"] for message in reader.events("stream-reset")]


def test_a_rewound_log_restarts_an_open_stream(streamed: StreamedRun) -> None:
    last = grow(streamed.run, 20)
    reader = streamed.open()
    heard(reader, [*range(1, last + 1)])
    rewind(streamed.run, 5)
    eventually(lambda: resets(reader), why="the reader gets a reset")
    new = grow(streamed.run, 2)
    eventually(lambda: reader.ids[-1:] == [new], why="what is true comes again")

    assert resets(reader) == [5]
    before = [*range(1, last + 1)]
    assert [int(m.id or 0) for m in reader.events("message")] == [*before, *range(1, new + 1)]


def test_a_rewound_log_restarts_a_reconnecting_reader(streamed: StreamedRun) -> None:
    last = grow(streamed.run, 20)
    rewind(streamed.run, 5)
    reader = streamed.open(headers={"Last-Event-ID": str(last)})
    eventually(lambda: reader.ids[-1:] == [5], why="what is true comes")

    assert resets(reader) == [5]
    assert [int(m.id or 0) for m in reader.events("message")] == [1, 2, 3, 4, 5]


def test_a_page_gets_a_reset(streamed: StreamedRun) -> None:
    last = grow(streamed.run, 20)
    page = streamed.listeners.open(f"{streamed.page_url}?afterSeq={last}", streamed.cookie, pause_s=60)
    eventually(lambda: page.messages, why="the stream begins")
    rewind(streamed.run, 5)

    eventually(lambda: resets(page), why="the page gets a reset")


@pytest.mark.breaks_invariants("events are taken out of the log")
def test_missing_events_after_the_cursor_cause_a_reset(streamed: StreamedRun) -> None:
    last = grow(streamed.run, 20)
    with allow_changes("test: a part of the log is gone"):
        Event.objects.filter(log=streamed.run.pk, seq__in=[4, 5]).delete()
    reader = streamed.open("?afterSeq=3", pause_s=60)
    eventually(lambda: resets(reader), why="the reader gets a reset")

    assert resets(reader) == [last]
    assert reader.events("message") == []
