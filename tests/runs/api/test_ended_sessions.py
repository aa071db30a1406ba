"""The server ends the session of a request before any of its statements: 503, nothing written, and a retry succeeds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections
from django.http import HttpResponse

from agentops.accounts.models import Project
from runs.models import AgentRun, RunCommand
from tests.support.api import Program, program
from tests.support.databases import EndedSession, Server, on_the_server
from tests.support.factories import make_agent, make_project, make_run
from timeline.models import Event

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]
#: More than the number of statements of any request here.
MANY = 200


server = pytest.fixture(on_the_server)
Act = Callable[[Program, str], HttpResponse]


def create(client: Program, key: str) -> HttpResponse:
    return client.post("", {"agent_id": "player", "prompt": "Say hello"}, Idempotency_Key=key)


def say(client: Program, key: str) -> HttpResponse:
    run = AgentRun.objects.get(title="talks")
    return client.post(f"/{run.pk}/commands", {"type": "send", "message": key}, Idempotency_Key=key)


@pytest.mark.parametrize(
    ("act", "made", "idle"),
    [
        (create, AgentRun, True),
        (say, RunCommand, False),
        pytest.param(create, AgentRun, False, marks=pytest.mark.slow),
        pytest.param(say, RunCommand, True, marks=pytest.mark.slow),
    ],
)
def test_a_request_whose_session_ended_can_be_retried_immediately(
    act: Act, made: Any, *, idle: bool, server: Server
) -> None:
    project = make_project("alpha")
    make_run(make_agent(project, slug="player"), "Go.", title="talks")
    client = program(project)
    client.client.raise_request_exception = False
    outcomes = []
    for number in range(1, MANY):
        key, before = f"key-{number}", (made.objects.count(), Event.objects.count())
        session = EndedSession(number, server, idle=idle)
        with connection.execute_wrapper(session):
            answer = act(client, key)
        connection.close()
        if session.statements < number:
            break
        outcomes.append(answer.status_code)
        if answer.status_code == 503:
            assert session.has_ended
            assert (answer.json()["code"], answer["Retry-After"]) == ("storage_unavailable", "5"), number
            assert (made.objects.count(), Event.objects.count()) == before, number

        again = act(client, key)

        assert again.status_code < 300, (number, again.content)
        assert made.objects.count() == before[0] + 1, number
    assert set(outcomes) <= {503, answer.status_code}
    # Until the commit.
    assert outcomes.count(503) > len(outcomes) / 2


def test_an_idempotency_key_is_free_after_the_session_ended(server: Server) -> None:
    """The thread of the first request has not noticed the end yet."""
    make_agent(make_project("alpha"), slug="player")
    client = program(Project.objects.get())
    meanwhile: list[int] = []

    def repeat() -> None:
        try:
            meanwhile.append(create(Program(client.project, client.headers), "key").status_code)
        finally:
            connections.close_all()

    class Repeated(EndedSession):
        def end(self) -> None:
            super().end()
            thread = threading.Thread(target=repeat)
            thread.start()
            thread.join(60)

    # The run is not committed, and the key is locked.
    with connection.execute_wrapper(Repeated(20, server, idle=True)):
        first = create(client, "key")

    assert (first.status_code, meanwhile) == (503, [201])
    assert AgentRun.objects.count() == 1
    assert create(client, "key")["Idempotent-Replayed"] == "true"
