"""Requests for work: few messages, none too early, and one after every request."""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise

import pytest

from runs.lifecycle import wake
from runs.lifecycle.wake import Debounce
from tests.support.timing import at_once, eventually

INTERVAL_S = 0.05


class Receiver:
    """A callable that records when it was called, and the data stored by then."""

    def __init__(self) -> None:
        self.stored = 0
        self.calls: list[tuple[str, float, int]] = []

    def __call__(self, name: str) -> None:
        self.calls.append((name, time.monotonic(), self.stored))

    def seen(self) -> int:
        return max((stored for _, _, stored in self.calls), default=0)


@pytest.fixture(autouse=True)
def _short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "INTERVAL_S", INTERVAL_S)


def test_a_thousand_requests_cause_few_messages_and_the_last_is_handled() -> None:
    receiver = Receiver()
    requests, began = Debounce(receiver), time.monotonic()
    for _ in range(1000):
        receiver.stored += 1
        requests.request("index")
    took = time.monotonic() - began
    requests.flush(60)

    assert receiver.seen() == 1000
    assert len(receiver.calls) <= took / INTERVAL_S + 2


def test_requests_of_many_threads_are_handled() -> None:
    receiver, lock = Receiver(), threading.Lock()
    requests = Debounce(receiver)

    def work(_: int) -> None:
        for _ in range(200):
            with lock:
                receiver.stored += 1
            requests.request("index")

    at_once(work, 8)
    eventually(lambda: receiver.seen() == 1600, why="the last request is answered")


def test_a_countdown_is_not_shortened_and_not_prolonged_by_later_requests() -> None:
    """For example entries of traces, which are due two seconds after they arrive, while more keep arriving."""
    receiver, countdown_s = Receiver(), 4 * INTERVAL_S
    requests, began = Debounce(receiver), time.monotonic()

    def request_and_look() -> bool:
        requests.request("settle", countdown_s)
        return len(receiver.calls) >= 3

    eventually(request_and_look, why="messages come while requests come")
    called = [at for _, at, _ in receiver.calls]
    assert called[0] >= began + countdown_s
    assert all(later - earlier > INTERVAL_S * 0.9 for earlier, later in pairwise(called))
    requests.flush(60)


def test_an_early_request_does_not_wait_for_a_late_one() -> None:
    receiver = Receiver()
    requests = Debounce(receiver)
    requests.request("index", 3600)
    requests.request("index")

    eventually(lambda: len(receiver.calls) == 1, why="the second request is answered")
    requests.flush(60)
    assert len(receiver.calls) == 2


def test_names_do_not_delay_each_other() -> None:
    receiver = Receiver()
    requests = Debounce(receiver)
    for name in ("index", "export", "settle"):
        requests.request(name)
    requests.flush(60)

    assert sorted(name for name, _, _ in receiver.calls) == ["export", "index", "settle"]


def test_chains_under_constant_load_do_not_multiply() -> None:
    """Each message causes another one, as if the task always found work, while requests arrive too."""
    calls: list[float] = []
    chained = threading.Event()
    chained.set()

    def send(name: str) -> None:
        calls.append(time.monotonic())
        if chained.is_set():
            requests.request(name)
            requests.request(name, INTERVAL_S)

    requests, began = Debounce(send), time.monotonic()

    def request_and_look() -> bool:
        requests.request("index")
        return len(calls) >= 10

    eventually(request_and_look, why="ten messages were sent")
    chained.clear()
    assert len(calls) <= (time.monotonic() - began) / INTERVAL_S + 2
    requests.flush(60)


def test_a_process_forks_only_between_two_calls() -> None:
    """A lock that the thread of a call held at the fork would never be released in the child."""
    pool_lock, is_sending, may_end = threading.Lock(), threading.Event(), threading.Event()

    def send(_: str) -> None:
        with pool_lock:
            is_sending.set()
            may_end.wait(5)

    Debounce(send).request("sweep")
    assert is_sending.wait(5)
    threading.Timer(0.1, may_end.set).start()

    pid = os.fork()
    if pid == 0:
        os._exit(0 if pool_lock.acquire(timeout=5) else 1)

    assert os.waitpid(pid, 0)[1] == 0
