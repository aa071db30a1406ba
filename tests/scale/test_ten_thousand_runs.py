"""Ten thousand queued runs on two workers. A test kills one worker while all its places are taken.

Each slice is one step, so each run waits behind all others twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import pytest
from django.db.models import F

from runs.models import Agent, AgentRun, AgentRunToolCall, Attempt
from runs.statuses import AFTER_A_DEATH, RunStatus
from tests.support.child_processes import ChildProcess
from tests.support.databases import OwnRedis
from tests.support.machine import ROOT
from tests.support.stage import Stage
from tests.support.timing import eventually

RUNS = int(os.environ.get("SCALE_RUNS", "10000"))
SLOTS = 8
#: A worker counts as dead after 20 s, and the next sweep follows within 5 s.
PACE = {"AGENTOPS_LEASE_S": "20", "AGENTOPS_RENEW_S": "5", "AGENTOPS_SWEEP_S": "5", "AGENTOPS_SLICE_S": "0"}
CALLS = [["ledger_idempotent"]]
STEPS = len(CALLS) + 1
CONTINUED_S = 30

pytestmark = [pytest.mark.scale, pytest.mark.postgres, pytest.mark.redis]


class Slice(NamedTuple):
    """One slice of a run: when the run was queued for it, and when a worker claimed it."""

    queued_at: datetime
    claimed_at: datetime
    follows_death: bool


def all_slices() -> list[Slice]:
    slices = []
    attempts = Attempt.objects.annotate(created_at=F("run__created_at")).order_by("run_id", "epoch")
    for _, of_run in groupby(attempts, attrgetter("run_id")):
        queued_at, has_died = None, False
        for attempt in of_run:
            slices.append(Slice(queued_at or attempt.created_at, attempt.claimed_at, has_died))
            queued_at, has_died = attempt.ended_at, attempt.end_reason in AFTER_A_DEATH
    return slices


def most_overtakings(slices: list[Slice]) -> int:
    """Return the largest number of slices that were claimed ahead of a slice queued before them."""
    by_claim = sorted(slices, key=attrgetter("claimed_at"))
    queued = sorted(each.queued_at for each in slices)
    return max(claimed - bisect_left(queued, each.queued_at) for claimed, each in enumerate(by_claim))


def start_runs(stage: Stage, agent: Agent) -> None:
    env = {**stage.databases.env(stage.name, stage.home), "REDIS_URL": stage.redis.url if stage.redis else ""}
    env |= {"DJANGO_SETTINGS_MODULE": "tests.support.process_settings", "LOG_LEVEL": "WARNING"}
    half = str(RUNS // 2)
    command = [sys.executable, "-m", "tests.support.programs.writers", "runs", str(agent.pk), half]
    programs = [subprocess.Popen(command, cwd=ROOT, env=env) for _ in range(2)]
    assert [program.wait(600) for program in programs] == [0, 0]


def kill_at_work(stage: Stage, victim: ChildProcess) -> tuple[datetime, list[AgentRun]]:
    """Kill a worker while it has a run in each of its places. Return the time and these runs."""

    def held() -> list[AgentRun]:
        return list(AgentRun.objects.filter(status=RunStatus.RUNNING, lease_owner__contains=f":{victim.pid}:"))

    stage.suspend(victim)
    victim.signal(stage.KILL)
    return datetime.now(UTC), held()


def test_ten_thousand_queued_runs(stage: Stage, own_redis: OwnRedis) -> None:
    agent = stage.agent(CALLS)
    began = time.monotonic()
    start_runs(stage, agent)
    print(f"\n{RUNS} runs started in {time.monotonic() - began:.0f} s")
    began = time.monotonic()
    victim, _ = stage.worker(slots=SLOTS, **PACE), stage.worker(slots=SLOTS, **PACE)
    eventually(lambda: Attempt.objects.count() > RUNS // 2, within_s=300, why="the workers are in the middle")
    killed_at, held = kill_at_work(stage, victim)
    stage.worker(slots=SLOTS, **PACE)

    eventually(
        lambda: not AgentRun.objects.exclude(status=RunStatus.COMPLETED).exists(), within_s=1800, why="all have ended"
    )
    print(f"{RUNS * STEPS} steps on two workers took {time.monotonic() - began:.0f} s")
    continued = [Attempt.objects.get(run=run, epoch=run.lease_epoch + 1).claimed_at - killed_at for run in held]
    print(
        f"{len(held)} runs of the killed worker continued after {sorted(each.total_seconds() for each in continued)} s"
    )
    assert held
    assert max(continued) <= timedelta(seconds=CONTINUED_S)
    assert AgentRunToolCall.objects.count() == RUNS * len(CALLS)
    effects = stage.effects()
    assert len({effect.key for effect in effects}) == RUNS * len(CALLS)
    assert len(effects) <= RUNS * len(CALLS) + len(held)

    most = most_overtakings([each for each in all_slices() if not each.follows_death])
    print(f"at most {most} slices were claimed before one that was queued earlier")
    # Workers take slices from the queue at the same time. A message lost with a worker is sent again within two sweeps.
    assert most <= RUNS // 10
