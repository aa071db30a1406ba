"""The server ends a worker's session after any statement of a step: the step waits and continues in a new session."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection

from runs.engine import step
from runs.models import AgentRun, Attempt, RunError
from runs.worker.worker import Worker
from tests.support.databases import EndedSession, Server, on_the_server
from tests.support.engine import MakeScripted
from tests.support.run_checks import check

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]
server = pytest.fixture(on_the_server)
CALLS = [["ledger_idempotent"]]
MANY = 300


@pytest.mark.parametrize(("idle", "every"), [(True, 4), (False, 7), pytest.param(False, 1, marks=pytest.mark.slow)])
def test_a_step_survives_the_end_of_its_session_after_any_statement(
    scripted: MakeScripted,
    worker: Worker,
    server: Server,
    effects: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    idle: bool,
    every: int,
) -> None:
    monkeypatch.setattr(step, "STORAGE_WAIT_S", 0.01)
    ended = 0
    for number in range(1, MANY, every):
        run, before = scripted(calls=CALLS), len(effects())
        session = EndedSession(number, server, idle=idle)
        with connection.execute_wrapper(session):
            worker.drive(run.pk)
        connection.close()
        ended += session.has_ended
        run.refresh_from_db()
        if run.status == "queued":
            # The claim failed; the next sweep repeats it.
            worker.drive(run.pk)
            run.refresh_from_db()

        assert (run.status, run.lease_owner) == ("completed", None), number
        assert len(effects()) == before + 1, number
        assert not RunError.objects.filter(run=run).exists(), number
        assert not Attempt.objects.filter(run=run, end_reason__in=["died", "died_alone", "fenced"]).exists(), number
        check(run)
        if session.statements < number:
            break
    assert ended > 3
    assert AgentRun.objects.exclude(status="completed").count() == 0
