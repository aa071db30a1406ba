"""A flow run that cannot be advanced, or that kills its workers, fails; other flow runs advance in the meantime."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError

from agentops.accounts.models import Project
from runs.flows import runner
from runs.flows.kernel import expressions
from runs.flows.runner import MAX_ATTEMPTS, attempt
from runs.models import FlowRun
from runs.statuses import RunStatus
from tests.support.factories import make_project
from tests.support.flows import EXPENSIVE, SCOPE, make_flow_run, types_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]


@pytest.fixture
def project(transactional_db: None) -> Project:
    return make_project()


def constant(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "type": "constant", "value": 1, **fields}


def fresh(flow_run: FlowRun) -> FlowRun:
    return FlowRun.objects.get(pk=flow_run.pk)


@pytest.mark.breaks_invariants("the snapshot is one of another definition")
def test_a_flow_run_that_cannot_be_advanced_fails(project: Project) -> None:
    """Its snapshot does not match its definition, so each attempt to advance it raises."""
    broken = make_flow_run({"nodes": [constant("a")]}, project)
    FlowRun.objects.filter(pk=broken.pk).update(snapshot={**broken.snapshot, "nodeStatus": {"b": "pending"}})
    for number in range(1, MAX_ATTEMPTS + 1):
        assert fresh(broken).state is RunStatus.QUEUED
        later = make_flow_run({"flow_id": f"other-{number}", "nodes": [constant("a")]}, project)
        runner.advance_due()
        assert fresh(later).state is RunStatus.COMPLETED
    ended = fresh(broken)
    assert (ended.status, ended.error_type, ended.is_due) == ("failed", "advance_failed", False)
    assert f"in {MAX_ATTEMPTS} attempts" in ended.error_message
    assert "nodeStatus of the snapshot does not fit the definition" in ended.error_message
    assert types_of(ended)[-2:] == ["flow.completed", "run.failed"]
    assert not FlowRun.objects.due().exists()


def test_a_flow_run_whose_workers_are_killed_fails(project: Project) -> None:
    flow_run = make_flow_run({"nodes": [constant("a")]}, project)

    def killed(flow_run_id: UUID) -> bool:
        raise SystemExit(137)

    for _ in range(MAX_ATTEMPTS):
        with pytest.raises(SystemExit):
            attempt(flow_run.pk, killed)
    assert fresh(flow_run).advance_attempts == MAX_ATTEMPTS
    runner.advance_due()
    ended = fresh(flow_run)
    assert (ended.status, ended.error_type) == ("failed", "advance_lost")
    assert "their workers were killed, or failed" in ended.error_message
    assert ended.snapshot["nodeStatus"] == {"a": "pending"}


def test_an_advance_resets_earlier_attempts(project: Project) -> None:
    flow_run = make_flow_run({"nodes": [constant("a"), {"id": "b", "type": "human", "question": "?"}]}, project)
    FlowRun.objects.filter(pk=flow_run.pk).update(advance_attempts=MAX_ATTEMPTS - 1)
    runner.advance_due()
    assert (fresh(flow_run).advance_attempts, fresh(flow_run).status) == (0, "waiting")


def test_an_outage_of_the_database_is_not_counted(project: Project) -> None:
    flow_run = make_flow_run({"nodes": [constant("a")]}, project)

    def unreachable(flow_run_id: UUID) -> bool:
        raise OperationalError("server closed the connection unexpectedly")

    for _ in range(MAX_ATTEMPTS + 1):
        with pytest.raises(OperationalError):
            attempt(flow_run.pk, unreachable)
    assert (fresh(flow_run).advance_attempts, fresh(flow_run).status) == (0, "queued")


def test_other_projects_advance_while_one_computes(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each condition has less than 200 characters and would take hours."""
    monkeypatch.setattr(expressions, "MAX_STEPS", 100_000)
    attacks = [
        make_flow_run(
            {"flow_id": f"attack-{n}", "nodes": [constant("a", when=expensive)]}, project, inputs=SCOPE["inputs"]
        )
        for n, expensive in enumerate(EXPENSIVE[:3])
    ]
    other = make_flow_run({"nodes": [constant("a")]}, make_project("other"))
    runner.advance_due()

    assert fresh(other).state is RunStatus.COMPLETED
    for attack in attacks:
        ended = fresh(attack)
        assert (ended.status, ended.error_type) == ("failed", "expression_too_expensive")
        assert "takes more than 100000 steps" in ended.error_message
