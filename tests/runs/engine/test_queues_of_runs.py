"""Queue and priority of runs: copied from the agent at creation, and updated when the agent changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, connections, transaction

from agentops.accounts.access import SYSTEM
from runs.actions import ag_ui_runs, agent_definitions
from runs.actions.ag_ui_runs import AgUiRequest, ClientMessage
from runs.actions.resume import resume
from runs.lifecycle import transitions
from runs.models import Agent, AgentRun
from tests.support.factories import make_agent, make_run
from tests.support.timing import eventually

pytestmark = pytest.mark.django_db(transaction=True)


def definition(agent: Agent, **placement: Any) -> dict[str, Any]:
    frozen = agent_definitions.definition_at(agent, agent.version)
    assert frozen is not None
    return frozen | placement


def test_a_run_has_the_queue_and_the_priority_of_its_agent() -> None:
    run = make_run(make_agent(queue="gpu", priority=2))
    assert (run.queue, run.priority) == ("gpu", 2)
    assert "queue" not in run.agent_config


def test_a_resumed_run_gets_the_current_queue_and_priority_of_the_agent() -> None:
    run = make_run(make_agent(queue="gpu"))
    assert transitions.claim(run.pk, "worker")
    Agent.objects.update(queue="cpu", priority=1)

    new = resume(run.pk, by="ann", kill=True).run

    assert (new.queue, new.priority) == ("cpu", 1)


def test_a_run_of_a_deleted_agent_is_resumed_in_its_queue() -> None:
    run = make_run(make_agent(queue="gpu", priority=2))
    assert transitions.claim(run.pk, "worker")
    AgentRun.objects.update(agent=None)

    new = resume(run.pk, by="ann", kill=True).run

    assert (new.queue, new.priority) == ("gpu", 2)


def test_live_runs_follow_their_agent_into_another_queue(woken: list[UUID]) -> None:
    agent = make_agent()
    running, queued, other = make_run(agent), make_run(agent), make_run()
    assert transitions.claim(running.pk, "worker")

    apply(agent, queue="gpu", priority=0)

    assert list(AgentRun.objects.order_by("pk").values_list("queue", "priority")) == [
        ("gpu", 0),
        ("gpu", 0),
        ("default", 5),
    ]
    assert woken == [queued.pk]
    assert other.queue == "default"
    woken.clear()
    apply(agent, queue="gpu", priority=0)
    assert woken == []


def test_an_omitted_placement_field_keeps_its_value(woken: list[UUID]) -> None:
    agent = make_agent(queue="gpu", priority=2, max_running=3)

    apply(agent, instructions="Look twice.")

    agent.refresh_from_db()
    assert agent.placement == {"queue": "gpu", "priority": 2, "max_running": 3}
    assert agent.version == 2
    apply(agent, max_running=None)
    agent.refresh_from_db()
    assert (agent.max_running, agent.version, agent.versions.count()) == (None, 2, 2)


def apply(agent: Agent, **changes: Any) -> None:
    agent.refresh_from_db()
    agent_definitions.apply(agent.project, definition(agent, **changes), by="ann")


@pytest.mark.postgres
def test_a_queue_change_and_a_concurrent_claim_do_not_deadlock() -> None:
    """Both lock runs before the agent."""
    agent = make_agent(max_running=9)
    run = make_run(agent)

    outcome = _outcome_during_claim(
        run, lambda: agent_definitions.apply(agent.project, definition(agent, queue="gpu"), by="ann")[1]
    )

    assert outcome == "changed"
    assert AgentRun.objects.get(pk=run.pk).queue == "gpu"


@pytest.mark.postgres
def test_a_message_to_a_thread_and_a_concurrent_claim_do_not_deadlock() -> None:
    agent = make_agent(max_running=9)
    first, second = (AgUiRequest("thread", name, [ClientMessage(name, "Go.")]) for name in ("first", "second"))
    run = ag_ui_runs.start(SYSTEM, agent.project, agent, first).run

    outcome = _outcome_during_claim(run, lambda: ag_ui_runs.start(SYSTEM, agent.project, agent, second))

    assert outcome.code == "thread_busy"


def _outcome_during_claim(run: AgentRun, act: Callable[[], Any]) -> Any:
    """Call `act` while a worker claims the run; return its result or exception."""
    outcome: list[Any] = []

    def call() -> None:
        try:
            outcome.append(act())
        except Exception as error:
            outcome.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=call)
    with transaction.atomic():
        AgentRun.objects.select_for_update(no_key=True, of=("self",)).get(pk=run.pk)
        thread.start()
        eventually(_is_lock_awaited, why="the call waits for the row of the run")
        assert transitions.claim(run.pk, "worker")
    thread.join(60)
    return outcome[0]


def _is_lock_awaited() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])
