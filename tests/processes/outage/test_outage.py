"""Test an unavailable, overloaded or interrupted provider: 50 runs over two protocols complete as if undisturbed.

The provider is a separate process on loopback; the vendors' real libraries connect to it. Retry settings compress ten
minutes into seconds. `TEST_AWAY_S=600` runs at the default pace.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from agentops.accounts.models import Project
from runs.models import Agent, AgentRun, AgentRunMessage, RunError, TurnUsage
from runs.providers import llm
from runs.statuses import LIVE, RunStatus
from runs.upkeep.invariants import check
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from tests.support.factories import make_agent, make_project, make_run
from tests.support.programs import failing_provider
from tests.support.scripted_model import ledger_read

pytestmark = [
    pytest.mark.django_db(transaction=True),
    # Connections of the vendors' libraries end with the worker's event loop.
    pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
MODELS = ("anthropic:claude-sonnet-5-5", "openai-chat:gpt-4o")
PROGRAMS, RUNS = 5, 50
#: Number of threads that drive runs, and seconds between polls.
THREADS, LOOK_S = 8, 0.05
AWAY_S = float(os.environ.get("TEST_AWAY_S", "1.5"))
#: Time limit for a failing test. A wait usually takes a tenth of it.
PATIENCE_S = 180 + 3 * AWAY_S
#: Fields of a message that differ between runs. Billed usage is compared separately.
PASSING = frozenset({"timestamp", "run_id", "conversation_id", "usage"})


class Mock:
    """The provider's process, and the commands it accepts."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, failing_provider.__file__, "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.port = self._answer()["port"]

    def order(self, word: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self._answer()

    def wait_for_requests(self, more: int) -> None:
        """Wait until it has received this many more requests."""
        first = self.order("stats")["requests"]
        until = time.monotonic() + PATIENCE_S
        while self.order("stats")["requests"] < first + more:
            assert time.monotonic() < until
            time.sleep(0.02)

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def mock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mock]:
    mock = Mock()
    monkeypatch.setattr("pydantic_ai.models.ALLOW_MODEL_REQUESTS", True)
    for vendor, path in (("ANTHROPIC", ""), ("OPENAI", "/v1")):
        monkeypatch.setenv(f"{vendor}_BASE_URL", f"http://127.0.0.1:{mock.port}{path}")
        monkeypatch.setenv(f"{vendor}_API_KEY", "sk-of-nobody")
    llm.adapter_of.cache_clear()
    yield mock
    llm.adapter_of.cache_clear()
    mock.close()


@pytest.fixture
def worker(mock: Mock, settings: Any, transactional_db: None, no_hints: None) -> Iterator[Worker]:
    if AWAY_S < 60:
        # 600 s and 500 ms divided by about the same factor, with a longer limit for a machine under load.
        settings.AGENTOPS_RETRY_BASE_DELAY_MS, settings.AGENTOPS_OUTAGE_S = 2, 300
    worker = Worker()
    threads = [threading.Thread(target=drive_all, args=[worker], daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    yield worker
    worker.ask_to_stop()
    for thread in threads:
        thread.join(30)
    for model in MODELS:
        # Their connections belong to the worker's event loop and end with it.
        worker.loop.submit(llm.model_of(model).client.close()).result(30)
    worker.close(30)


def drive_all(worker: Worker) -> None:
    """Drive runs like a thread of Celery's pool, until the worker is to stop."""
    while not worker.shutdown.requested.wait(LOOK_S):
        advance_ready(worker)
    connections.close_all()


def make_agents(project: Project, ledger: Path) -> list[Agent]:
    return [
        make_agent(project, provider="llm", model=model, tools=[ledger_read.name], settings={"ledger": str(ledger)})
        for model in MODELS
    ]


def make_runs(agents: list[Agent], times: int) -> list[AgentRun]:
    """Create each program on each protocol `times` times, with programs in alternation."""
    return [make_run(agent, f"Program {n}") for _ in range(times) for n in range(PROGRAMS) for agent in agents]


def wait_for_ends(runs: list[AgentRun]) -> Counter[str]:
    """Wait until no run is active, or until the time limit, and count the statuses."""
    ids = [run.pk for run in runs]
    until = time.monotonic() + PATIENCE_S
    while True:
        seen = Counter(AgentRun.objects.filter(pk__in=ids).values_list("status", flat=True))
        if not set(seen) & LIVE or time.monotonic() > until:
            return seen
        time.sleep(0.1)


def wait_for_a_wait() -> None:
    """Wait until a run waits for the provider without a worker."""
    until = time.monotonic() + PATIENCE_S
    while not AgentRun.objects.filter(status=RunStatus.WAITING, status_reason="cooldown").exists():
        assert time.monotonic() < until
        time.sleep(0.02)


def errors_of(runs: list[AgentRun]) -> list[Any]:
    """Return the latest errors of runs that did not complete."""
    rows = RunError.objects.filter(run__in=runs).exclude(run__status=RunStatus.COMPLETED).order_by("-pk")
    return list(rows.values_list("run_id", "attempt", "error_type", "message", "details")[:20])


def transcript(run: AgentRun) -> list[Any]:
    """Return messages, calls and billed usage without data that differs between runs.

    OpenAI reports usage after the answer. If the stream is cut between the two, the answer is complete but its usage is
    unknown.
    """
    rows = AgentRunMessage.objects.filter(run=run, rolled_back_at=None).order_by("position")
    said = [(row.role, row.step_number, format_duration(row.content)) for row in rows]
    answered = TurnUsage.objects.filter(run=run, outcome=TurnUsage.Outcome.ANSWERED)
    used = answered.filter(model__startswith="claude").order_by("step_number")
    billed = list(used.values_list("step_number", "model", "input_tokens", "output_tokens", "cost_usd"))
    run.refresh_from_db()
    return [said, billed, run.result, run.step_count]


def format_duration(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: format_duration(each) for name, each in value.items() if name not in PASSING}
    return [format_duration(each) for each in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_no_run_fails_while_a_provider_is_unavailable_interrupted_and_overloaded(
    mock: Mock, worker: Worker, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    agents = make_agents(make_project(), ledger)
    twins = make_runs(agents, 1)
    assert wait_for_ends(twins) == {"completed": len(twins)}, errors_of(twins)
    undisturbed = {(run.agent_id, run.prompt): transcript(run) for run in twins}

    mock.order("storm")
    runs = make_runs(agents, RUNS // len(twins))
    mock.wait_for_requests(60)
    mock.order("away")
    time.sleep(AWAY_S)
    wait_for_a_wait()
    mock.order("back")
    if AWAY_S < 60:
        mock.order("storm")
        mock.wait_for_requests(60)
    mock.order("calm")
    ended = wait_for_ends(runs)
    stats = mock.order("stats")

    assert ended == {"completed": RUNS}, errors_of(runs)
    assert all(stats[fault] > 0 for fault in ("429", "529", "cut"))
    assert RunError.objects.filter(run__in=runs, error_type="no_internet").exists()
    for run in runs:
        assert transcript(run) == undisturbed[run.agent_id, run.prompt]
    lines = Counter(line.split(" ")[0] for line in ledger.read_text().splitlines())
    assert lines == {str(run.pk): 2 for run in [*twins, *runs]}
    assert [violation for violation in check() if not violation.warning_only] == []
