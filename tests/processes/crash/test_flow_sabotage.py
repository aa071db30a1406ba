"""Prove that the checks of killed flows detect failures: each sabotage disables a protection, and a check must fail.

test_killed_flows.py plays the same flow without a sabotage and passes. `make chaos-flows` runs both.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pytest_django import Settings

from tests.support.flows import definition, make_flow_run, problems_of, record_answers, shake, site, undisturbed
from tests.support.sabotage import SABOTAGE, SABOTAGES
from tests.support.stage import Stage

pytestmark = [
    pytest.mark.breaks_invariants("on purpose"),
    pytest.mark.skipif("FLOW_SEEDS" not in os.environ, reason="takes minutes: played by make chaos-flows"),
]
#: The flow takes a fraction of this without a sabotage.
STUCK_S = 40
#: Maps each sabotage to the points where workers are killed, and the checks of which at least one must fail.
PROOFS = {
    "advance_in_pieces": (["flow.node_opened:2"], {"invariants", "open runs"}),
    "older_snapshot_saved": ([], {"stuck", "snapshot", "replay"}),
    "ends_not_looked_for": (["flow.hint_due:1"], {"stuck"}),
    "resumed_by_each_worker": (["flow.committed:2"], {"resumes"}),
}


@pytest.mark.every_database
def test_each_sabotage_has_a_proof() -> None:
    assert set(PROOFS) == set(SABOTAGES)


@pytest.mark.parametrize("name", PROOFS)
def test_a_disabled_protection_is_detected(stage: Stage, settings: Settings, tmp_path: Path, name: str) -> None:
    record_answers(tmp_path, "writer", [f"text {n}" for n in range(8)])
    record_answers(tmp_path, "critic", ["again", "again", "good"])
    calm = undisturbed(stage, settings, tmp_path)
    kills, seen_by = PROOFS[name]
    flow_run = make_flow_run(definition(stage), site("shaken"))
    broken = {SABOTAGE: name}
    try:
        _, resumes = shake(stage, flow_run, list(kills), fixtures=tmp_path, within_s=STUCK_S, env=broken)
        problems = problems_of(flow_run, calm, resumes)
    except TimeoutError as error:
        problems = {"stuck": str(error)}

    assert problems.keys() & seen_by, problems
