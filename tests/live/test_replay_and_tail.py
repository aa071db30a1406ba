"""What a reader of the JSON stream is sent: everything after its cursor, once, in order, and then the end."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from django.db import transaction

from tests.support.live.growing_logs import finish, grow, last_seq
from tests.support.live.streamed_run import StreamedRun
from tests.support.waiting import eventually
from tests.support.web.event_stream import Follower
from tests.support.web.stream_clients import heard
from timeline import log
from timeline.events.tool import ToolOutput
from timeline.log import Entry
from timeline.models import Source


def test_it_replays_and_goes_on(scene: StreamedRun) -> None:
    before = grow(scene.run, 5)
    reader = scene.open()

    heard(reader, [*range(1, before + 1)])
    for _ in range(3):
        last = grow(scene.run, 2)
        heard(reader, [*range(1, last + 1)])
    wire = [json.loads(message.data or "") for message in reader.events("message")]
    assert wire == [json.loads(json.dumps(log.wire(event))) for event in log.events_of(scene.run.pk)]


def test_it_sends_exactly_what_follows_the_cursor(scene: StreamedRun) -> None:
    last = grow(scene.run, 10)
    reader = scene.open(f"?afterSeq={last - 3}")

    heard(reader, [last - 2, last - 1, last])
    assert grow(scene.run) == last + 1
    heard(reader, [last - 2, last - 1, last, last + 1])


def test_the_header_wins_over_the_query(scene: StreamedRun) -> None:
    last = grow(scene.run, 10)
    reader = scene.open("?afterSeq=1", {"Last-Event-ID": str(last - 1)})

    heard(reader, [last])


@pytest.mark.parametrize("form", ["{}", "{}.0"])
def test_it_takes_both_forms_of_an_id(scene: StreamedRun, form: str) -> None:
    last = grow(scene.run, 4)

    heard(scene.open(headers={"Last-Event-ID": form.format(last - 1)}), [last])


def test_it_delivers_more_than_one_page_without_loss(scene: StreamedRun) -> None:
    for _ in range(5):
        last = grow(scene.run, 211)

    heard(scene.open(), [*range(1, last + 1)], within_s=10)


def test_a_burst_reaches_everyone_once(scene: StreamedRun) -> None:
    readers = [scene.open() for _ in range(10)]
    heard(readers[0], [*range(1, last_seq(scene.run) + 1)])
    for size in (1, 999, 3, 1000):
        last = grow(scene.run, size)

    for reader in readers:
        heard(reader, [*range(1, last + 1)], within_s=20)


def test_it_tells_within_a_moment(scene: StreamedRun) -> None:
    """Not by looking once a second: the doorbell is heard."""
    reader = scene.open()
    heard(reader, [*range(1, last_seq(scene.run) + 1)])
    for _ in range(5):
        last = grow(scene.run)
        heard(reader, [*range(1, last + 1)], within_s=0.7)


@pytest.mark.parametrize("by_query", [False, True], ids=["Last-Event-ID", "afterSeq"])
def test_reconnections_while_events_are_written_lose_nothing(scene: StreamedRun, by_query: bool) -> None:
    readers = [scene.open(by_query=by_query, pause_s=0.02) for _ in range(8)]
    heard(readers[0], [*range(1, last_seq(scene.run) + 1)])
    dice, done = random.Random(3), threading.Event()

    def disturb() -> None:
        while not done.wait(0.02):
            scene.listeners.call(dice.choice(readers).drop)

    disturber = threading.Thread(target=disturb)
    disturber.start()
    # Sixty commits may take less time than a few reconnections: on with both until there were enough of each.
    rounds, until = 0, time.monotonic() + 20
    try:
        while rounds < 60 or (opened(readers) < 24 and time.monotonic() < until):
            last = grow(scene.run, dice.choice([1, 1, 3, 20]))
            rounds += 1
    finally:
        done.set()
        disturber.join()

    for reader in readers:
        heard(reader, [*range(1, last + 1)], within_s=20)
    assert opened(readers) >= 24


def opened(readers: Iterable[Follower]) -> int:
    return sum(len(reader.answers) for reader in readers)


def test_the_end_of_a_run_ends_the_stream(scene: StreamedRun) -> None:
    reader = scene.open(pause_s=0.05)
    heard(reader, [*range(1, last_seq(scene.run) + 1)])
    last = finish(scene.run)
    # Back with its last id it is told that nothing follows, by which a browser stops for good.
    eventually(lambda: reader.statuses == [200, 204], within_s=5, why="204 after the end")

    assert [m.event for m in reader.messages if m.data is not None][-2:] == ["message", "end"]
    assert reader.events("end")[0].id == str(last)
    assert [int(m.id or 0) for m in reader.events("message")] == [*range(1, last + 1)]


def test_a_run_that_has_ended_is_replayed(scene: StreamedRun) -> None:
    grow(scene.run, 300)
    last = finish(scene.run)
    told = scene.listeners.read_to_end(scene.url, scene.cookie)

    assert [int(m.id or 0) for m in told if m.event == "message" and m.data] == [*range(1, last + 1)]
    assert told[-1].event == "end"
    again = scene.listeners.ask(f"{scene.url}?afterSeq={last}", scene.cookie)
    assert (again.status, again.body) == (204, b"")


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("how", ["?afterSeq=", "header"])
def test_a_cursor_of_the_future_starts_over(scene: StreamedRun, ended: bool, how: str) -> None:
    last = finish(scene.run) if ended else grow(scene.run, 3)
    future = str(last + 1000)
    query, headers = ("", {"Last-Event-ID": future}) if how == "header" else (how + future, {})
    reader = scene.open(query, headers, stop_at_end=True)
    eventually(lambda: reader.ids[-1:] == [last], within_s=5, why="everything comes again")

    first, *rest = [message for message in reader.messages if message.data is not None]
    assert first.event == "stream-reset"
    assert json.loads(first.data or "") == {"last_seq": last}
    assert [int(m.id or 0) for m in rest if m.event == "message"] == [*range(1, last + 1)]


def test_an_id_of_another_incarnation_starts_over(scene: StreamedRun) -> None:
    last = grow(scene.run, 3)
    reader = scene.open(headers={"Last-Event-ID": f"{last}.7"})
    eventually(lambda: reader.ids[-1:] == [last], within_s=5, why="everything comes again")

    assert reader.messages[1].event == "stream-reset"
    assert [int(m.id or 0) for m in reader.events("message")] == [*range(1, last + 1)]


def late_output(scene: StreamedRun) -> int:
    """A tool of the run answers when nobody waits for it any more; the seq of its event."""
    entry = Entry(ToolOutput(call_id="c", text="too late", late=True), phase="stopped", late=True)
    with transaction.atomic():
        return log.append(scene.run.pk, [entry], source=Source.WORKER)[-1].seq


def sent(scene: StreamedRun, after: str = "0") -> list[tuple[str, str | None]]:
    """What one connection with this last id is sent until it closes, without what is no event."""
    messages = scene.listeners.read_to_end(scene.url, scene.cookie | {"Last-Event-ID": after})
    return [(message.event, message.id) for message in messages if message.data is not None]


def test_an_event_after_the_terminal_one_is_for_those_who_open_the_stream_again(scene: StreamedRun) -> None:
    """What the API's documentation promises: `end` after the terminal event, and what is late by asking again."""
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(sent, scene)
        last = finish(scene.run)
        open_before = reading.result(10)
    late = late_output(scene)

    assert open_before == [*(("message", str(seq)) for seq in range(1, last + 1)), ("end", str(last))]
    assert late == last + 1
    assert sent(scene, str(last)) == [("message", str(late)), ("end", str(late))]
    assert scene.listeners.ask(scene.url, scene.cookie | {"Last-Event-ID": str(late)}).status == 204
    page = httpx.get(scene.url.removesuffix("/stream"), params={"afterSeq": last}, headers=scene.cookie).json()
    assert [(event["seq"], event["type"], event["payload"]["late"]) for event in page["results"]] == [
        (late, "tool.output", True)
    ]


def test_the_documentation_says_what_becomes_of_late_events(scene: StreamedRun) -> None:
    schema = httpx.get(f"{scene.web.url}/api/schema", headers=scene.cookie).text

    assert "is not sent to a stream that has ended" in schema
