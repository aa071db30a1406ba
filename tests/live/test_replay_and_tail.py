"""The JSON stream: a reader gets everything after its cursor, once, in order, and then the end."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from django.db import transaction

from tests.support.stream_clients import Follower, heard
from tests.support.timelines import StreamedRun, finish, grow, last_seq
from tests.support.timing import eventually
from timeline import log
from timeline.events.tool import ToolOutput
from timeline.live import hub
from timeline.log import Entry
from timeline.models import Source


def test_a_stream_replays_and_then_follows(streamed: StreamedRun) -> None:
    before = grow(streamed.run, 5)
    reader = streamed.open()

    heard(reader, [*range(1, before + 1)])
    for _ in range(3):
        last = grow(streamed.run, 2)
        heard(reader, [*range(1, last + 1)])
    wire = [json.loads(message.data or "") for message in reader.events("message")]
    assert wire == [json.loads(json.dumps(log.wire(event))) for event in log.events_of(streamed.run.pk)]


def test_it_sends_exactly_what_follows_the_cursor(streamed: StreamedRun) -> None:
    last = grow(streamed.run, 10)
    reader = streamed.open(f"?afterSeq={last - 3}")

    heard(reader, [last - 2, last - 1, last])
    assert grow(streamed.run) == last + 1
    heard(reader, [last - 2, last - 1, last, last + 1])


def test_the_header_wins_over_the_query(streamed: StreamedRun) -> None:
    last = grow(streamed.run, 10)
    reader = streamed.open("?afterSeq=1", {"Last-Event-ID": str(last - 1)})

    heard(reader, [last])


@pytest.mark.parametrize("form", ["{}", "{}.0"])
def test_both_forms_of_an_event_id_are_accepted(streamed: StreamedRun, form: str) -> None:
    last = grow(streamed.run, 4)

    heard(streamed.open(headers={"Last-Event-ID": form.format(last - 1)}), [last])


@pytest.mark.parametrize("at_a_time", [200, 7])
def test_it_delivers_more_than_one_page_without_loss(streamed: StreamedRun, settings: Any, at_a_time: int) -> None:
    settings.SSE_MAX_BUFFER = at_a_time
    for _ in range(5):
        last = grow(streamed.run, 211)

    heard(streamed.open(), [*range(1, last + 1)], within_s=10)


def test_a_burst_reaches_every_reader_once(streamed: StreamedRun) -> None:
    readers = [streamed.open() for _ in range(10)]
    heard(readers[0], [*range(1, last_seq(streamed.run) + 1)])
    for size in (1, 999, 3, 1000):
        last = grow(streamed.run, size)

    for reader in readers:
        heard(reader, [*range(1, last + 1)], within_s=20)


def test_events_arrive_without_polling(streamed: StreamedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notification wakes the stream; the poll once a second is disabled."""
    assert hub.TICK_S == 1
    monkeypatch.setattr(hub, "TICK_S", 3600)
    reader = streamed.open()
    heard(reader, [*range(1, last_seq(streamed.run) + 1)])
    for _ in range(5):
        last = grow(streamed.run)
        heard(reader, [*range(1, last + 1)])


@pytest.mark.parametrize("by_query", [False, True], ids=["Last-Event-ID", "afterSeq"])
def test_reconnections_while_events_are_written_lose_nothing(streamed: StreamedRun, by_query: bool) -> None:
    readers = [streamed.open(by_query=by_query, pause_s=0.02) for _ in range(8)]
    heard(readers[0], [*range(1, last_seq(streamed.run) + 1)])
    dice, done = random.Random(3), threading.Event()

    def disturb() -> None:
        while not done.wait(0.02):
            streamed.listeners.call(dice.choice(readers).drop)

    disturber = threading.Thread(target=disturb)
    disturber.start()
    # Sixty commits may take less time than a few reconnections, so repeat both until there are enough of each.
    rounds, until = 0, time.monotonic() + 20
    try:
        while rounds < 60 or (opened(readers) < 24 and time.monotonic() < until):
            last = grow(streamed.run, dice.choice([1, 1, 3, 20]))
            rounds += 1
    finally:
        done.set()
        disturber.join()

    for reader in readers:
        heard(reader, [*range(1, last + 1)], within_s=20)
    assert opened(readers) >= 24


def opened(readers: Iterable[Follower]) -> int:
    return sum(len(reader.answers) for reader in readers)


def test_the_end_of_a_run_ends_the_stream(streamed: StreamedRun) -> None:
    reader = streamed.open(pause_s=0.05)
    heard(reader, [*range(1, last_seq(streamed.run) + 1)])
    last = finish(streamed.run)
    # A client that reconnects with the last ID gets 204, which stops a browser for good.
    eventually(lambda: reader.statuses == [200, 204], why="204 after the end")

    assert [m.event for m in reader.messages if m.data is not None][-2:] == ["message", "end"]
    assert reader.events("end")[0].id == str(last)
    assert [int(m.id or 0) for m in reader.events("message")] == [*range(1, last + 1)]


def test_a_run_that_has_ended_is_replayed(streamed: StreamedRun) -> None:
    grow(streamed.run, 300)
    last = finish(streamed.run)
    told = streamed.listeners.read_to_end(streamed.url, streamed.cookie)

    assert [int(m.id or 0) for m in told if m.event == "message" and m.data] == [*range(1, last + 1)]
    assert told[-1].event == "end"
    again = streamed.listeners.ask(f"{streamed.url}?afterSeq={last}", streamed.cookie)
    assert (again.status, again.body) == (204, b"")


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("how", ["?afterSeq=", "header"])
def test_a_cursor_of_the_future_starts_over(streamed: StreamedRun, ended: bool, how: str) -> None:
    last = finish(streamed.run) if ended else grow(streamed.run, 3)
    future = str(last + 1000)
    query, headers = ("", {"Last-Event-ID": future}) if how == "header" else (how + future, {})
    reader = streamed.open(query, headers, stop_at_end=True)
    eventually(lambda: reader.ids[-1:] == [last], why="everything comes again")

    first, *rest = [message for message in reader.messages if message.data is not None]
    assert first.event == "stream-reset"
    assert json.loads(first.data or "") == {"last_seq": last}
    assert [int(m.id or 0) for m in rest if m.event == "message"] == [*range(1, last + 1)]


def test_an_id_of_another_incarnation_starts_from_the_beginning(streamed: StreamedRun) -> None:
    last = grow(streamed.run, 3)
    reader = streamed.open(headers={"Last-Event-ID": f"{last}.7"})
    eventually(lambda: reader.ids[-1:] == [last], why="everything comes again")

    assert reader.messages[1].event == "stream-reset"
    assert [int(m.id or 0) for m in reader.events("message")] == [*range(1, last + 1)]


def late_output(streamed: StreamedRun) -> int:
    """Append the output of a tool of the run after the run has ended, and return the seq of the event."""
    entry = Entry(ToolOutput(call_id="c", text="too late", late=True), phase="stopped", late=True)
    with transaction.atomic():
        return log.append(streamed.run.pk, [entry], source=Source.WORKER)[-1].seq


def sent(streamed: StreamedRun, after: str = "0") -> list[tuple[str, str | None]]:
    """Return the events sent to a connection with this last ID until it closes."""
    messages = streamed.listeners.read_to_end(streamed.url, streamed.cookie | {"Last-Event-ID": after})
    return [(message.event, message.id) for message in messages if message.data is not None]


def test_an_event_after_the_terminal_one_is_sent_on_reconnecting(streamed: StreamedRun) -> None:
    """As documented for the API: `end` follows the terminal event, and a later request gets late events."""
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(sent, streamed)
        last = finish(streamed.run)
        open_before = reading.result(10)
    late = late_output(streamed)

    assert open_before == [*(("message", str(seq)) for seq in range(1, last + 1)), ("end", str(last))]
    assert late == last + 1
    assert sent(streamed, str(last)) == [("message", str(late)), ("end", str(late))]
    assert streamed.listeners.ask(streamed.url, streamed.cookie | {"Last-Event-ID": str(late)}).status == 204
    page = httpx.get(streamed.url.removesuffix("/stream"), params={"afterSeq": last}, headers=streamed.cookie).json()
    assert [(event["seq"], event["type"], event["payload"]["late"]) for event in page["results"]] == [
        (late, "tool.output", True)
    ]


def test_the_documentation_describes_late_events(streamed: StreamedRun) -> None:
    schema = httpx.get(f"{streamed.web.url}/api/schema", headers=streamed.cookie).text

    assert "is not sent to a stream that has ended" in schema.replace("\\n", " ")
