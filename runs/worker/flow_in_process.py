"""Drives one flow run in this process until it rests, for commands and tests that wait for it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from agentops.accounts.audit import Actor
from runs.actions import run_actions
from runs.errors import MoveRefused
from runs.flows import runner
from runs.lifecycle import node_runs
from runs.models import AgentRun, FlowRun, FlowVisit
from runs.statuses import LIVE, WaitReason
from runs.worker.in_process import LOOK_EVERY_S, is_at_rest, ready_runs
from runs.worker.sweep import end_waits
from runs.worker.worker import Worker


class HumanAnswers:
    """The answers to the questions of human nodes: by node, one text for every question, or a list with one each.

    Raises ValueError for a node of the flow that asks no question.
    """

    def __init__(self, flow: Mapping[str, object], answers: Mapping[str, str | Sequence[str]]) -> None:
        require_kind(flow, answers, "human", "asks no question")
        self._left = {node: _answers_of(given) for node, given in answers.items()}

    def give(self, flow_run: FlowRun, *, by: Actor) -> bool:
        """Answer the open questions for which answers are left. Returns whether it answered one."""
        given = [(run, next(self._left.get(visit.node, iter(())), None)) for visit, run in open_questions(flow_run.pk)]
        for run, text in given:
            if text is not None:
                run_actions.reply(by, run, text)
        return any(text is not None for _, text in given)


def _answers_of(given: str | Sequence[str]) -> Iterator[str]:
    while isinstance(given, str):
        yield given
    yield from given


def require_kind(flow: Mapping[str, object], nodes: Mapping[str, object], kind: str, problem: str) -> None:
    """Raise ValueError if one of `nodes` is not a node of this kind in the definition."""
    specs = flow.get("nodes")
    known = [str(spec.get("id")) for spec in specs if spec.get("type") == kind] if isinstance(specs, list) else []
    for node in nodes:
        if node not in known:
            raise ValueError(f"node {node!r} of the flow {problem}; nodes that do: {', '.join(known) or 'none'}")


def open_questions(flow_run_id: UUID) -> list[tuple[FlowVisit, AgentRun]]:
    """Return the visits of human nodes that wait for an answer, with their runs."""
    visits = FlowVisit.objects.open().filter(flow_run=flow_run_id, kind="human", session__isnull=False)
    found = list(visits.order_by("node", "iteration", "item"))
    runs = node_runs.current_runs([visit.session_id for visit in found if visit.session_id is not None])
    pairs = [(visit, runs[visit.session_id]) for visit in found if visit.session_id in runs]
    return [(visit, run) for visit, run in pairs if run.status_reason == WaitReason.INPUT]


def drive_flow_to_rest(
    flow_run_id: UUID, worker: Worker, *, answers: HumanAnswers, by: Actor, timeout_s: float = float("inf")
) -> FlowRun:
    """Return the flow run once it has ended, is paused, waits for a person, or after `timeout_s`.

    Drives the runs of its nodes and their child runs only; another worker may take them too. `by` is the actor who
    gives the answers.
    """
    until = time.monotonic() + timeout_s
    due = FlowRun.objects.due().filter(pk=flow_run_id)
    while True:
        while due.exists() and _advance(flow_run_id):
            pass
        flow_run = FlowRun.objects.select_related("project").get(pk=flow_run_id)
        if flow_run.state not in LIVE or time.monotonic() > until:
            return flow_run
        runs = node_runs.open_runs(flow_run)
        if all(is_at_rest(run) for run in runs) and not due.exists() and not answers.give(flow_run, by=by):
            return flow_run
        if not any(worker.drive(ready) for ready in ready_runs([run.root_run_id for run in runs])):
            time.sleep(LOOK_EVERY_S)
        end_waits()


def _advance(flow_run_id: UUID) -> bool:
    """Advance a flow run. Returns whether to check again immediately, for example after a conflicting change."""
    with suppress(MoveRefused):
        return runner.advance(flow_run_id)
    return True
