"""A provider that raises SystemExit: its call fails, and the event loop of all model calls keeps running."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from runs.models import RunError
from runs.providers.base import ModelCall
from runs.statuses import RunStatus
from runs.worker.worker import Worker
from tests.support.engine import MakeScripted
from tests.support.factories import drive
from tests.support.run_checks import check
from tests.support.scripted_model import Move

pytestmark = pytest.mark.django_db(transaction=True)


def leave() -> None:
    raise SystemExit(3)


async def leave_soon() -> None:
    leave()


def test_a_provider_that_exits_causes_a_failed_attempt(scripted: MakeScripted, worker: Worker) -> None:
    attempts: list[int] = []

    def play(call: ModelCall) -> Iterable[Move]:
        attempts.append(call.number)
        yield from [leave] if len(attempts) == 1 else ["Done."]

    run = drive(scripted(play), worker)

    assert (run.status, run.result, attempts) == (RunStatus.COMPLETED, "Done.", [1, 1])
    assert "SystemExit: 3" in RunError.objects.get(run=run).details
    check(run)


def test_a_task_that_exits_ends_no_model_call(scripted: MakeScripted, worker: Worker) -> None:
    tasks: list[asyncio.Task[None]] = []

    def play(_: ModelCall) -> Iterable[Move]:
        yield lambda: tasks.append(asyncio.get_running_loop().create_task(leave_soon()))
        yield from [0.1, "Done."]

    run = drive(scripted(play), worker)

    assert (run.status, run.result) == (RunStatus.COMPLETED, "Done.")
    with pytest.raises(SystemExit):
        tasks[0].result()
