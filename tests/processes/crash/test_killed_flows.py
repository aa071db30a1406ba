"""Kill workers at random points of a flow with a loop, a forEach, a question and two agents.

The flow ends as if no worker had been killed. `make chaos-flows` plays more seeds, and one long flow with 50 kills.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from runs import chaos
from runs.models import AgentRun
from tests.support.flows import definition, make_flow_run, problems_of, record_answers, shake, site, undisturbed
from tests.support.run_checks import check
from tests.support.stage import Stage

SEEDS = range(int(os.environ.get("FLOW_SEEDS", "1")))
KILLS = 5
WITHIN_S = 150
#: Kills and time limit of the one long flow of `make chaos-flows`. Its rounds and items last for more kills.
MANY_KILLS, MANY_WITHIN_S = 50, 900
LONG_ROUNDS, LONG_ITEMS = 60, 40
#: Workers on the long flow at the same time, so that one works while the other starts.
WORKERS = 2
#: Points of flows have a higher weight, because other tests cover the remaining points.
POINTS = [*chaos.FLOW_POINTS] * 3 + [
    *("claim.committed", "model.before_call", "model.answered", "turn.in_transaction", "turn.committed"),
    *("checkpoint.in_transaction", "end.in_transaction", "end.committed", "tool.marked_running", "tool.returned"),
]


def long_definition(stage: Stage) -> dict[str, Any]:
    """Return the flow with many rounds and items, and a tool in each round."""
    long = definition(stage)
    count = next(node for node in long["nodes"] if node["id"] == "count")
    long["nodes"].append({**count, "id": "look"})
    long["nodes"][0]["value"] = [f"topic {n}" for n in range(LONG_ITEMS)]
    to_review, again, *rest = long["edges"]
    again["maxIterations"] = LONG_ROUNDS
    long["edges"] = [{"from": "draft", "to": "look"}, {**to_review, "from": "look"}, again, *rest]
    return long


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flow_survives_killed_workers(stage: Stage, settings: Settings, tmp_path: Path, seed: int) -> None:
    record_answers(tmp_path, "writer", [f"text {n}" for n in range(8)])
    record_answers(tmp_path, "critic", ["again", "again", "good"])
    calm = undisturbed(stage, settings, tmp_path)
    assert calm.status == "completed"
    chance = random.Random(seed)
    kills = [f"{chance.choice(POINTS)}:{chance.randint(1, 2)}" for _ in range(KILLS - 1)]
    kills.append(f"{chance.choice([*chaos.FLOW_POINTS])}:{chance.randint(1, 2)}")

    flow_run = make_flow_run(definition(stage), site("shaken"))
    died, resumes = shake(stage, flow_run, kills, fixtures=tmp_path, within_s=WITHIN_S)

    print(f"seed {seed}: {died} workers were killed")
    assert died, "no worker was killed: choose another seed"
    assert problems_of(flow_run, calm, resumes) == {}
    for run in AgentRun.objects.filter(flow_run=flow_run):
        check(run)


@pytest.mark.skipif("FLOW_SEEDS" not in os.environ, reason="takes minutes: played by make chaos-flows")
def test_one_flow_survives_fifty_killed_workers(stage: Stage, settings: Settings, tmp_path: Path) -> None:
    record_answers(tmp_path, "writer", [f"text {n}" for n in range(LONG_ROUNDS + LONG_ITEMS)])
    record_answers(tmp_path, "critic", [*["again"] * (LONG_ROUNDS - 1), "good"])
    long = long_definition(stage)
    calm = undisturbed(stage, settings, tmp_path, long)
    assert calm.status == "completed"
    chance = random.Random(MANY_KILLS)
    kills = [f"{chance.choice(POINTS)}:{chance.randint(1, 3)}" for _ in range(MANY_KILLS)]

    flow_run = make_flow_run(long, site("shaken"))
    began = time.monotonic()
    died, resumes = shake(
        stage, flow_run, kills, fixtures=tmp_path, within_s=MANY_WITHIN_S, workers=WORKERS, resume_every=10
    )

    print(f"{died} workers were killed in {time.monotonic() - began:.0f} s, and the flow was resumed {resumes} times")
    assert died == MANY_KILLS, "the flow ended too early: give it more rounds or items"
    assert resumes >= 3
    assert problems_of(flow_run, calm, resumes) == {}
    for run in AgentRun.objects.filter(flow_run=flow_run):
        check(run)
