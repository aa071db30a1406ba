"""The thread of a worker that takes runs: it goes on when something fails, because nobody else takes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from pytest_django import Settings

from runs.models import AgentRun
from runs.statuses import RunStatus
from runs.worker.worker import Worker
from tests.support.factories import make_run
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def sweeping(transactional_db: None, settings: Settings) -> Iterator[Worker]:
    settings.AGENTOPS_SWEEP_S = 0.1
    worker = Worker(concurrency=1)
    worker.start_sweeping()
    yield worker
    worker.close(30)


def test_a_thread_that_cannot_be_started_costs_no_slot_and_no_sweep(
    sweeping: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the machine or the container has no room for another one, for a moment."""
    usual = threading.stack_size(1 << 46)
    try:
        run = make_run()
        eventually(lambda: "can't start new thread" in caplog.text, why="no thread was needed", within_s=20)
    finally:
        threading.stack_size(usual)

    eventually(lambda: AgentRun.objects.get(pk=run.pk).state is RunStatus.COMPLETED, why="nobody takes the run")
