"""A reader that stops reading is disconnected after a timeout and resumes from its cursor; others are not affected."""

from __future__ import annotations

import pytest

from agentops.asgi import live_server
from tests.support.stream_clients import TINY, heard
from tests.support.timelines import StreamedRun, grow, last_seq
from tests.support.timing import eventually
from timeline.live import client


@pytest.mark.slow
def test_stuck_readers_are_disconnected_and_lose_nothing(
    streamed: StreamedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "SLOW_S", 1)
    quick = streamed.open()
    heard(quick, [*range(1, last_seq(streamed.run) + 1)])
    stuck = [streamed.open(receive_buffer=TINY, slow_s=3600, pause_s=0.05) for _ in range(4)]
    eventually(lambda: all(reader.messages for reader in stuck), why="the streams begin")
    # More than the sockets and the server's buffer can hold.
    for _ in range(40):
        last = grow(streamed.run, 10, size=16_000)
        heard(quick, [*range(1, last + 1)], within_s=20)
    eventually(lambda: len(live_server.hub().clients) == 1, why="only the quick reader is still served")
    for reader in stuck:
        # They continue reading: first the data in the sockets, then the end of the connection.
        streamed.listeners.call(reader.hurry)
    for reader in stuck:
        heard(reader, [*range(1, last + 1)], within_s=20)
        assert len(reader.answers) > 1, "it was never let go"
    assert len(quick.answers) == 1


@pytest.mark.slow
def test_a_slow_reader_that_keeps_reading_stays_connected(
    streamed: StreamedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "SLOW_S", 2)
    slow = streamed.open(receive_buffer=TINY, slow_s=0.01)
    eventually(lambda: slow.messages, why="the stream begins")
    last = grow(streamed.run, 300, size=2_000)

    heard(slow, [*range(1, last + 1)], within_s=20)
    assert len(slow.answers) == 1
