"""Drives one run, or one flow run, in this process until it is at rest, for commands and tests that wait for it.

A run is at rest if it has ended, is paused or waits for a person.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from uuid import UUID

from django.db.models import Q

from agentops.accounts.audit import Actor
from runs.actions import run_actions
from runs.errors import MoveRefused
from runs.flows import runner
from runs.lifecycle import children, node_runs
from runs.models import AgentRun, FlowRun, FlowVisit
from runs.statuses import LIVE, WaitReason
from runs.worker.sweep import end_waits
from runs.worker.worker import Worker

#: Seconds between two searches for a run that can be driven.
LOOK_EVERY_S = 0.1


def drive_to_rest(run_id: UUID, worker: Worker, *, timeout_s: float = float("inf")) -> AgentRun:
    """Drive a run and its child runs until the run is at rest, or for `timeout_s` seconds, and return it.

    Another worker may drive them too. If a policy resumes the run, returns the run that continues it.
    """
    until = time.monotonic() + timeout_s
    while True:
        run = children.newest(AgentRun.objects.get(pk=run_id))
        if is_at_rest(run) or time.monotonic() > until:
            return run
        if not any(worker.drive(ready) for ready in ready_runs([run.root_run_id])):
            time.sleep(LOOK_EVERY_S)
        end_waits()


def is_at_rest(run: AgentRun) -> bool:
    """Whether a run has ended, is paused or waits for a person."""
    return run.state not in LIVE or node_runs.waits_for_person(run)


def advance_ready(worker: Worker) -> int:
    """End waits that are over, and drive each runnable run for a slice. Returns how many were driven."""
    end_waits()
    return sum(worker.drive(run_id) for run_id in list(AgentRun.objects.runnable().values_list("pk", flat=True)))


def ready_runs(lineages: Sequence[UUID]) -> list[UUID]:
    """Return the runnable runs of these lineages, and of their children and grandchildren."""
    descendants = Q(parent_run__root_run__in=lineages) | Q(parent_run__parent_run__root_run__in=lineages)
    runs = AgentRun.objects.runnable().filter(Q(root_run__in=lineages) | descendants)
    return list(runs.values_list("pk", flat=True))


class HumanAnswers:
    """The answers to the questions of human nodes, by node: a text for all questions, or a list with one text for each.

    Raises `ValueError` for a node of the flow that asks no question.
    """

    def __init__(self, flow: Mapping[str, object], answers: Mapping[str, str | Sequence[str]]) -> None:
        require_kind(flow, answers, "human", "asks no question")
        self._left = {node: _answers_of(texts) for node, texts in answers.items()}

    def give(self, flow_run: FlowRun, *, by: Actor) -> bool:
        """Answer the open questions for which answers are left. Returns whether any was answered."""
        has_answered = False
        for visit, run in open_questions(flow_run.pk):
            text = next(self._left.get(visit.node, iter(())), None)
            if text is not None:
                run_actions.reply(by, run, text)
                has_answered = True
        return has_answered


def _answers_of(texts: str | Sequence[str]) -> Iterator[str]:
    """Return an iterator with an answer for each question. A single text is repeated without end."""
    return repeat(texts) if isinstance(texts, str) else iter(texts)


def require_kind(flow: Mapping[str, object], nodes: Mapping[str, object], kind: str, problem: str) -> None:
    """Raise `ValueError` unless all `nodes` are nodes of this kind in the definition. `problem` is part of its text."""
    specs = flow.get("nodes")
    known = [str(spec.get("id")) for spec in specs if spec.get("type") == kind] if isinstance(specs, list) else []
    for node in nodes:
        if node not in known:
            raise ValueError(f"node {node!r} of the flow {problem}; nodes that do: {', '.join(known) or 'none'}")


def open_questions(flow_run_id: UUID) -> list[tuple[FlowVisit, AgentRun]]:
    """Return the visits of human nodes that wait for an answer, with their runs."""
    visits = FlowVisit.objects.open().filter(flow_run=flow_run_id, kind="human", session__isnull=False)
    ordered = list(visits.order_by("node", "iteration", "item"))
    runs = node_runs.current_runs([visit.session_id for visit in ordered if visit.session_id is not None])
    pairs = [(visit, runs[visit.session_id]) for visit in ordered if visit.session_id in runs]
    return [(visit, run) for visit, run in pairs if run.status_reason == WaitReason.INPUT]


def drive_flow_to_rest(
    flow_run_id: UUID, worker: Worker, *, answers: HumanAnswers, by: Actor, timeout_s: float = float("inf")
) -> FlowRun:
    """Drive a flow run until it has ended, is paused or waits for a person, or for `timeout_s` seconds, and return it.

    Drives the runs of its nodes and their child runs; another worker may drive them too. `by` is the actor who gives
    the answers.
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
    """Advance a flow run. Returns whether to try again immediately, for example after a conflicting change."""
    with suppress(MoveRefused):
        return runner.advance(flow_run_id)
    return True
