"""The share of the threads that a credential, a project or a user may occupy."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest
from django.conf import settings as site
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.urls import path
from pytest_django import Settings

from agentops.base.fair_shares import Lanes
from agentops.base.http.threaded import ThreadedDjango
from tests.support.factories import make_person, session_of

MINE = [(b"authorization", b"Bearer mine")]
OTHER = [(b"host", b"localhost"), (b"authorization", b"Bearer other")]
SECRET = [(b"x-agent-runner-secret", b"secret")]
NOBODY = [(b"cookie", b"theme=dark")]
BROWSER = [(b"host", b"localhost"), (b"cookie", b"theme=dark; sessionid=mine")]


async def settle() -> None:
    """Run all tasks until they wait, without time passing."""
    for _ in range(50):
        await asyncio.sleep(0)


async def passing(lanes: Lanes, requests: list[Any], leave: asyncio.Event) -> list[int]:
    """Return the numbers of the requests that enter while none leaves."""
    passed: list[int] = []

    async def request(number: int, headers: Any) -> None:
        async with lanes.enter({"headers": headers}):
            passed.append(number)
            await leave.wait()

    tasks = [asyncio.create_task(request(number, headers)) for number, headers in enumerate(requests)]
    await settle()
    first = list(passed)
    leave.set()
    await asyncio.gather(*tasks)
    assert sorted(passed) == list(range(len(requests)))
    return first


def test_credential_does_not_delay_other_credentials() -> None:
    """Requests with the same credential wait in order. Requests without a credential are not limited."""

    async def play() -> None:
        for mine in (MINE, BROWSER):
            lanes = Lanes(2, 9)
            requests = [mine] * 5 + [OTHER, SECRET, session(1)] + [NOBODY] * 3
            assert await passing(lanes, requests, asyncio.Event()) == [0, 1, 5, 6, 7, 8, 9, 10]
            assert await passing(lanes, [mine] * 3, asyncio.Event()) == [0, 1]
            assert len(lanes) == 0

    asyncio.run(play())


def test_extra_header_does_not_bypass_the_limit_of_a_session_or_secret() -> None:
    """Pages and runners ignore an unneeded key, and Django uses the last of two cookies."""
    disguised = [
        [[*BROWSER, *key(number)] for number in range(4)],
        [[*SECRET, *key(number)] for number in range(4)],
        [[(b"cookie", b"sessionid=%d; sessionid=mine" % number)] for number in range(4)],
    ]

    async def play() -> None:
        for requests in disguised:
            assert await passing(Lanes(2, 9), [*requests, OTHER], asyncio.Event()) == [0, 1, 4]

    asyncio.run(play())


def test_cancelled_request_frees_its_place() -> None:
    async def play() -> list[int]:
        lanes = Lanes(1, 9)
        holding = asyncio.Event()

        async def hold() -> None:
            async with lanes.enter({"headers": MINE}):
                await holding.wait()

        tasks = [asyncio.create_task(hold()) for _ in range(3)]
        await settle()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return await passing(lanes, [MINE] * 2, asyncio.Event())

    assert asyncio.run(play()) == [0]


def key(number: int) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer %d" % number)]


def session(number: int) -> list[tuple[bytes, bytes]]:
    return [(b"cookie", b"sessionid=%d" % number)]


def test_many_keys_or_sessions_of_one_owner_do_not_delay_others() -> None:
    """This holds as soon as the owner is known. Before that, all such keys share one lane, and all sessions another."""

    async def play() -> None:
        for credential, owner, other in ((key, "project", session), (session, "user", key)):
            lanes, flood = Lanes(2, 3), [credential(number) for number in range(9)]
            unknown = await passing(lanes, [*flood, credential(9), NOBODY, other(1)], asyncio.Event())
            assert unknown == [0, 1, 2, 10, 11]
            for headers, name in [*((headers, "mine") for headers in flood), (credential(9), "other")]:
                async with lanes.enter({"headers": headers}) as credentials:
                    lanes.learn(credentials, **{owner: name})
            requests = [*flood, credential(9), credential(9), NOBODY, credential(10)]
            assert await passing(lanes, requests, asyncio.Event()) == [0, 1, 2, 9, 10, 11, 12]
            assert len(lanes) == 0

    asyncio.run(play())


# --- The whole site, with a slow page -----------------------------------------------------------------------------

may_leave = threading.Event()


def slow_page(request: HttpRequest) -> HttpResponse:
    if request.GET.get("stay") == request.user.get_username():
        may_leave.wait(60)
    return HttpResponse()


urlpatterns = [path("slow", slow_page)]


@pytest.mark.django_db(transaction=True)
def test_user_with_many_tabs_does_not_block_the_site(settings: Settings) -> None:
    """Six slow pages in three sessions of one user leave a thread for another user."""
    settings.ROOT_URLCONF = __name__
    settings.AGENTOPS_WEB_THREADS, settings.AGENTOPS_WEB_THREADS_PER_PROJECT = 4, 3
    one, another = make_person(), make_person()
    mine, other = [cookie_of(one) for _ in range(3)], cookie_of(another)
    may_leave.clear()

    async def play() -> list[int]:
        transport = httpx.ASGITransport(ThreadedDjango())
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
            for headers in (*mine, other):  # From now on, the site knows the users of these sessions.
                assert (await client.get("/slow", headers=headers)).status_code == 200
            address = f"/slow?stay={one.get_username()}"
            slow = [asyncio.create_task(client.get(address, headers=headers)) for headers in mine * 2]
            await settle()
            try:
                answer = await asyncio.wait_for(client.get(address, headers=other), 10)
            finally:
                may_leave.set()
            return [answer.status_code, *[(await each).status_code for each in slow]]

    assert asyncio.run(play()) == [200] * 7


def cookie_of(person: User) -> dict[str, str]:
    return {"Cookie": f"{site.SESSION_COOKIE_NAME}={session_of(person)}"}
