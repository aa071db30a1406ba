"""Tests of plans and of the rig's lists, which must match the lists of the product."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_django import Settings

from runs import chaos
from tests.chaos.environment import process_hooks, sabotage
from tests.chaos.schedules import catalogue
from tests.chaos.schedules.at_crash_points import case
from tests.chaos.schedules.random_plan import ARMED, STRONG, plan
from tests.chaos.schedules.sabotage_proofs import OF_CROWDS, proofs
from tests.support.machine import ROOT

ENGINES = ("postgres", "sqlite")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_seed_gives_the_same_plan(engine: str) -> None:
    assert [plan(seed, engine) for seed in range(50)] == [plan(seed, engine) for seed in range(50)]
    assert len({repr(plan(seed, engine)) for seed in range(50)}) == 50


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plan_has_one_to_six_faults_and_one_hits_a_worker(engine: str) -> None:
    for seed in range(200):
        faults = plan(seed, engine).faults
        assert 1 <= len(faults) <= 6
        assert {fault.kind for fault in faults} & set(STRONG)
        assert (plan(seed, engine).armed != "") == any(fault.kind == "armed" for fault in faults)


def test_sqlite_plans_omit_faults_of_a_database_server() -> None:
    kinds = {fault.kind for seed in range(200) for fault in plan(seed, "sqlite").faults}
    assert not kinds & {"cut", "restart postgres"}
    assert "CUT" not in {plan(seed, "sqlite").action for seed in range(200)}


def test_every_crash_point_has_a_schedule() -> None:
    groups = (chaos.POINTS, chaos.APPROVAL_POINTS, chaos.DECISION_POINTS, chaos.TREE_POINTS)
    assert catalogue.points() == [point for group in groups for point in group]
    assert set(ARMED) <= set(chaos.POINTS)
    for point in catalogue.points():
        made = case("sqlite", point)
        assert (made.point, made.hit, made.action) == (point, 1, "KILL")


def test_s_501_covers_every_point_of_a_worker() -> None:
    """Only schedules of single points cover a received hint and a person's command."""
    met = {*catalogue.IN_A_STEP, *catalogue.IN_A_SLICE, *catalogue.AFTER_A_DEATH}
    assert set(chaos.POINTS) - met == {"hint.received", "command.in_transaction"}


def test_every_sabotage_has_a_proof() -> None:
    assert set(catalogue.SABOTAGES) == set(sabotage.SABOTAGES) == {*proofs("postgres"), *OF_CROWDS}
    assert {*proofs("sqlite"), *OF_CROWDS} == set(catalogue.SABOTAGES) - set(catalogue.ONLY_POSTGRES)
    assert set(catalogue.PROVEN_BY_CROWDS) == set(OF_CROWDS)
    assert {crowd for crowd, _ in OF_CROWDS.values()} == set(catalogue.CROWDS) - {"skewed", "twenty"}


def test_hooks_are_refused_outside_of_tests(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.AGENTOPS_TESTING = False
    with pytest.raises(RuntimeError, match="refused"):
        sabotage.install("no-fencing")
    monkeypatch.setenv(process_hooks.SABOTAGE, "no-fencing")
    with pytest.raises(process_hooks.Refused):
        process_hooks.install()


#: Installs each sabotage in a forked process, and fails if one cannot be installed.
INSTALL_EACH = """
import os, django
django.setup()
from tests.chaos.environment import sabotage
failed = []
for name in sabotage.SABOTAGES:
    pid = os.fork()
    if not pid:
        try:
            sabotage.install(name)
        except BaseException as error:
            print(name, error, flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        failed.append(name)
raise SystemExit(bool(failed))
"""


def test_every_sabotage_can_be_installed(tmp_path: Path) -> None:
    """Install each sabotage: one whose target is missing would have no effect, and its proof would prove nothing."""
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.chaos.environment.settings",
        "AGENTOPS_TESTING": "true",
        process_hooks.TRACE: str(tmp_path / "trace"),
    }
    program = [sys.executable, "-c", INSTALL_EACH]
    done = subprocess.run(program, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
