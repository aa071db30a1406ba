"""From a person's action to its effect on a remote run: a message, a pause, a resume, a stop and an approval.

The actions are requests to the site's API. The process elsewhere learns of them while it executes a step.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from agentops.client import Client
from bench import payload
from bench.remote import serving
from bench.remote_program import OBEDIENT
from bench.report import Row, heading, note, percentile, show
from bench.workers import wait_until
from bench.workspace import Options, Workspace

ROUNDS, QUICK_ROUNDS = 40, 8
#: Limit in milliseconds for the 95th percentile.
LIMIT_MS = 2000
WITHIN_S = 30
#: When an action was requested, and when it had its effect.
Times = tuple[datetime, datetime]


def run(workspace: Workspace, options: Options) -> None:
    from agentops.accounts.access import SYSTEM
    from agentops.accounts.keys import create_key
    from agentops.accounts.models import Project

    heading("control: from a request of a person to its effect on a run that a process elsewhere executes")
    with serving(workspace, payload.steps(1)) as (served, _):
        project = Project.objects.get(slug="bench")
        key = create_key(project, name="person", scopes=["read", "write"], actor=SYSTEM).plain
        with Client(served.url, key) as person:
            for what, act in ACTIONS.items():
                spans = [act(person) for _ in range(QUICK_ROUNDS if options.quick else ROUNDS)]
                _show(what, [(effect - request).total_seconds() * 1000 for request, effect in spans])
    note("milliseconds by the database's clock; the limit is for the 95th percentile")


def _show(what: str, values: list[float]) -> None:
    high = percentile(values, 95)
    own = f"p50 {percentile(values, 50):.0f}, p95 {high:.0f} ms"
    show(Row(what, own, f"{LIMIT_MS} ms", high / LIMIT_MS, at_most=1))


def _working(person: Client) -> UUID:
    """Start a run, and return its ID when it executes a step."""
    from runs.models import RemoteStep

    run_id = UUID(str(person.start(OBEDIENT, "work").id))
    wait_until(RemoteStep.objects.filter(run=run_id).exists, WITHIN_S)
    return run_id


def _reaches(run_id: UUID, status: str) -> None:
    from runs.models import AgentRun

    wait_until(AgentRun.objects.filter(pk=run_id, status=status).exists, WITHIN_S)


def _command(run_id: UUID, kind: str) -> Times:
    from runs.models import RunCommand

    command = RunCommand.objects.get(run=run_id, type=kind)
    assert command.applied_at is not None
    return command.received_at, command.applied_at


def _send(person: Client) -> Times:
    run_id = _working(person)
    person.send(run_id, "Enough.")
    _reaches(run_id, "completed")
    return _command(run_id, "send")


def _pause(person: Client) -> Times:
    run_id = _working(person)
    person.pause(run_id)
    _reaches(run_id, "paused")
    return _command(run_id, "pause")


def _stop(person: Client) -> Times:
    run_id = _working(person)
    person.stop(run_id)
    _reaches(run_id, "stopped")
    return _command(run_id, "stop")


def _resume(person: Client) -> Times:
    """From the request to the claim by the process."""
    from runs.models import AgentRun

    run_id = _working(person)
    person.pause(run_id)
    _reaches(run_id, "paused")
    resumed = UUID(str(person.resume(run_id, "Enough.").id))
    _reaches(resumed, "completed")
    row = AgentRun.objects.get(pk=resumed)
    assert row.started_at is not None
    return row.created_at, row.started_at


def _approve(person: Client) -> Times:
    """From the decision to the end of the run, which has executed the approved step before."""
    from runs.models import AgentRun, Approval

    run_id = UUID(str(person.start(OBEDIENT, "approve").id))
    _reaches(run_id, "waiting")
    [approval] = person.approvals(run_id=str(run_id), state="pending")
    person.approve(run_id, approval.call_id)
    _reaches(run_id, "completed")
    decided, completed = Approval.objects.get(run=run_id).decided_at, AgentRun.objects.get(pk=run_id).completed_at
    assert decided is not None
    assert completed is not None
    return decided, completed


ACTIONS: dict[str, Callable[[Client], Times]] = {
    "message to the step that reads it": _send,
    "pause to the paused run": _pause,
    "resume to the claim": _resume,
    "stop to the stopped run": _stop,
    "approval to the executed step": _approve,
}
