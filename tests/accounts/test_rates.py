"""Rate limits of the API by key, user and address, in one process and in several."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
import time_machine
from django.test import Client
from limits.storage import MemoryStorage

from agentops.accounts import rate_counter, rate_limits
from agentops.accounts.models import Project
from agentops.accounts.rate_counter import DOWN_S, Counter, Standing
from agentops.base import database_clock
from agentops.base.http.request_origins import network_of
from tests.support.databases import OwnRedis
from tests.support.factories import make_person, make_project, with_key

URL = "/api/projects/alpha/agents"
NOW = 1_795_000_000.0


@pytest.fixture(autouse=True)
def _nobody_has_asked_yet() -> Iterator[None]:
    rate_limits.counter_of.cache_clear()
    yield
    rate_limits.counter_of.cache_clear()


@pytest.fixture
def project(db: None, settings: Any) -> Project:
    settings.AGENTOPS_RATE_KEY = settings.AGENTOPS_RATE_USER = settings.AGENTOPS_RATE_ADDRESS = 0
    settings.REDIS_URL = ""
    return make_project("alpha")


def asked(client: Client, times: int, url: str = URL, **options: Any) -> list[int]:
    return [client.get(url, **options).status_code for _ in range(times)]


def signed_in(project: Project) -> Client:
    client = Client()
    client.force_login(make_person(project))
    return client


def test_a_key_has_its_limit(project: Project, settings: Any) -> None:
    settings.AGENTOPS_RATE_KEY = 3
    mine, other = Client(headers=with_key(project)), Client(headers=with_key(project))
    first = mine.get(URL)
    assert (first["RateLimit-Limit"], first["RateLimit-Remaining"]) == ("3", "2")
    assert 1 <= int(first["RateLimit-Reset"]) <= 60
    assert asked(mine, 2) == [200, 200]
    refused = mine.get(URL)

    assert refused.status_code == 429
    assert (refused["Content-Type"], refused.json()["code"]) == ("application/problem+json", "rate_limited")
    assert (refused["RateLimit-Limit"], refused["RateLimit-Remaining"]) == ("3", "0")
    assert refused["Retry-After"] == refused["RateLimit-Reset"]
    # Each key has a separate limit, and so has a signed-in user.
    assert asked(other, 3) == asked(signed_in(project), 3) == [200] * 3


def test_a_user_has_one_limit_across_browsers(project: Project, settings: Any) -> None:
    settings.AGENTOPS_RATE_USER = 4
    person = make_person(project)
    browsers = [Client(), Client()]
    for browser in browsers:
        browser.force_login(person)

    assert [asked(browser, 2) for browser in browsers] == [[200, 200]] * 2
    assert [asked(browser, 1) for browser in browsers] == [[429]] * 2
    # Pages do not count as API requests.
    assert browsers[0].get("/p/alpha/runs").status_code == 200


def test_an_address_has_a_limit_for_all_keys_and_users(project: Project, settings: Any) -> None:
    """Also with guessed keys: these are refused before any key is looked up."""
    settings.AGENTOPS_RATE_ADDRESS = 4
    near = {"REMOTE_ADDR": "198.51.100.7"}
    guess = Client(headers={"Authorization": f"Bearer aok_live_{'a' * 12}_{'b' * 49}"})

    assert asked(guess, 2, **near) == [401, 401]
    assert asked(Client(), 1, **near) == [401]
    assert asked(Client(headers=with_key(project)), 2, **near) == [200, 429]
    assert asked(guess, 1, **near) == [429]
    assert asked(guess, 1, REMOTE_ADDR="198.51.100.8") == [401]


def test_refusals_carry_the_headers_and_the_nearest_limit_counts(project: Project, settings: Any) -> None:
    settings.AGENTOPS_RATE_KEY, settings.AGENTOPS_RATE_ADDRESS = 5, 50
    client = Client(headers=with_key(project))
    for url in (f"{URL}?limit=0", "/api/projects/nowhere/agents", f"{URL}/nobody"):
        answer = client.get(url)
        assert answer.status_code in (400, 404)
        assert answer["RateLimit-Limit"] == "5"
    assert answer["RateLimit-Remaining"] == "2"


def test_zero_means_no_limit_and_sends_no_headers(project: Project) -> None:
    answer = Client(headers=with_key(project)).get(URL)

    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("RateLimit")]


def test_pages_and_probes_are_not_counted(project: Project, settings: Any) -> None:
    settings.AGENTOPS_RATE_ADDRESS = 1
    assert asked(Client(), 3, "/healthz") == [200] * 3
    assert asked(signed_in(project), 3, "/p/alpha/runs") == [200] * 3


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("a socket", "a socket"),
    ],
)
def test_addresses_of_one_network_count_as_one(address: str, counted: str) -> None:
    assert network_of(address) == counted


# --- Between processes ------------------------------------------------------------------------------------------


def took(counter: Counter, limit: int, times: int) -> list[Standing]:
    return [counter.take(limit, "key:one") for _ in range(times)]


def passed(standings: list[Standing]) -> int:
    return sum(not each.exceeded for each in standings)


@pytest.mark.redis
def test_processes_count_together(redis_url: str) -> None:
    """A small limit is exact, no matter which process gets the requests."""
    here, there = Counter(redis_url), Counter(redis_url)
    turns = [each for _ in range(20) for each in (*took(here, 10, 1), *took(there, 10, 1))]

    assert [each.remaining for each in turns[:10]] == [*range(9, -1, -1)]
    assert [each.exceeded for each in turns] == [False] * 10 + [True] * 30


@pytest.mark.redis
def test_a_large_limit_is_synchronized_with_redis_in_batches(redis_url: str) -> None:
    """Most requests skip Redis; the excess stays within 1 % of the limit for each process."""
    processes = [Counter(redis_url) for _ in range(3)]
    with redis.Redis.from_url(redis_url) as client:
        before = client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
        turns = [each for _ in range(500) for process in processes for each in took(process, 1000, 1)]
        told = client.info("commandstats")["cmdstat_evalsha"]["calls"] - before

    assert 1000 <= passed(turns) <= 1000 + 3 * 10
    # After 900 of 1000, every request goes to Redis, so that the last ones are counted exactly.
    assert told < 900
    assert [each.exceeded for each in turns[-30:]] == [True] * 30


@pytest.mark.redis
def test_without_redis_each_process_counts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = OwnRedis(tmp_path)
    counter = Counter(server.url)

    try:
        with time_machine.travel(NOW):
            assert passed(took(counter, 5, 8)) == 5
            server.start()
            # Redis is tried again after an interval, not on each request.
            assert took(counter, 5, 1)[0].exceeded
            monkeypatch.setattr(rate_counter, "clock", lambda: database_clock.clock() + DOWN_S)
            assert not took(counter, 5, 1)[0].exceeded
    finally:
        server.kill()


def test_one_process_counts_to_the_last_request() -> None:
    """Although it reports to the store in batches."""
    turns = took(Counter(), 1000, 1200)

    assert [each.remaining for each in turns[:1000]] == [*range(999, -1, -1)]
    assert passed(turns) == 1000


def test_threads_count_together() -> None:
    """All requests are counted; the excess is what threads had not yet reported to the store."""
    counter, times, batch = Counter(), 150, 10
    with ThreadPoolExecutor(8) as threads:
        turns = [each for found in threads.map(lambda _: took(counter, 1000, times), range(8)) for each in found]

    assert 1000 - 8 <= passed(turns) <= 1000 + 8 * batch


def test_threads_are_counted_one_by_one_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library starts a timer with each count. Two threads at once could start the same timer: RuntimeError."""
    counting, most = set(), []
    incr = MemoryStorage.incr

    def slow_incr(self: MemoryStorage, *arguments: Any, **options: Any) -> int:
        counting.add(threading.get_ident())
        most.append(len(counting))
        time.sleep(0.002)
        number = incr(self, *arguments, **options)
        counting.discard(threading.get_ident())
        return number

    monkeypatch.setattr(MemoryStorage, "incr", slow_incr)
    counter = Counter()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: took(counter, 40, 5), range(8)))
    assert len(most) == 8 * 5
    assert max(most) == 1


def test_a_window_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter()
    assert passed(took(counter, 2, 4)) == 2
    later = time.time() + 61
    monkeypatch.setattr("time.time", lambda: later)
    assert passed(took(counter, 2, 4)) == 2


@pytest.mark.parametrize(("left_s", "more"), [(30.0, 2), (-0.1, 0)], ids=["within the minute", "after it"])
def test_giving_back_after_the_minute_adds_no_credit(left_s: float, more: int) -> None:
    counter = Counter()
    assert passed(took(counter, 4, 5)) == 4
    counter.give_back("key:one", 2, database_clock.clock() + left_s)
    assert passed(took(counter, 4, 5)) == more
