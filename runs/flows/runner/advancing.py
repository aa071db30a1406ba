"""Advance a flow run: read what has ended, let the kernel decide, and store it with the runs that it starts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

from django.db import transaction

from runs import chaos
from runs.actions import resume as resuming
from runs.database_errors import done_alone
from runs.errors import RunRefusal
from runs.flows.kernel import advance as kernel
from runs.flows.kernel.flow_decisions import Decisions, Happened, NodeFailure, VisitReport
from runs.flows.kernel.graph import Graph
from runs.flows.kernel.snapshot import Snapshot
from runs.flows.runner.attempts import attempt
from runs.flows.runner.outcomes import report_of
from runs.lifecycle.flows import flow_transitions, node_runs
from runs.models import AgentRun, FlowRun, FlowVisit
from runs.models.flows.flow_run import MOVING
from runs.providers import loading
from runs.statuses import RunStatus
from timeline.events.flow import NodeStarted
from timeline.models import Source

log = logging.getLogger(__name__)
#: Flow runs of one project that are advanced in a row while other projects wait.
TURN = 10
_BEFORE_ALL = UUID(int=0)


def advance_due(is_stopping: Callable[[], bool] = lambda: False) -> bool:
    """Advance every flow run that is due once, in turns of their projects. Returns whether to look again at once."""
    has_more, last, finished = False, dict[UUID, UUID](), set[UUID]()
    while True:
        projects = FlowRun.objects.due().exclude(project__in=finished).order_by().values_list("project", flat=True)
        waiting = list(projects.distinct())
        for project_id in waiting:
            # By ID, so that many that cannot be advanced do not keep later ones from being looked at.
            due = FlowRun.objects.due().filter(project=project_id, pk__gt=last.get(project_id, _BEFORE_ALL))
            flow_run_ids = list(due.values_list("pk", flat=True)[:TURN])
            for flow_run_id in flow_run_ids:
                if is_stopping():
                    return False
                has_more |= _advance_if_possible(flow_run_id)
            if len(flow_run_ids) < TURN:
                finished.add(project_id)
            else:
                last[project_id] = flow_run_ids[-1]
        if finished.issuperset(waiting):
            return has_more


def _advance_if_possible(flow_run_id: UUID) -> bool:
    """Advance a flow run, or log why it cannot be. Returns whether it can be advanced again at once."""
    act = partial(attempt, flow_run_id, advance)
    return done_alone(act, "a flow run can neither be advanced nor ended", run_id=str(flow_run_id))


def advance(flow_run_id: UUID) -> bool:
    """Advance a flow run, in one transaction. Returns whether it can be advanced again at once."""
    chaos.point("flow.before")
    return loading.repeating(partial(_advance, flow_run_id))


def _advance(flow_run_id: UUID) -> bool:
    with transaction.atomic():
        # Skip locked: another worker is at it. NO KEY, because its runs refer to it while they are resumed.
        rows = FlowRun.objects.select_for_update(skip_locked=True, no_key=True, of=("self",))
        flow_run = rows.filter(pk=flow_run_id, status__in=MOVING).first()
        if flow_run is None:
            return False
        _Advance(flow_run, flow_transitions.graph_of_run(flow_run)).run()
    chaos.point("flow.committed")
    return flow_run.is_due


@dataclass
class _Advance:
    """One advance of a locked flow run."""

    flow_run: FlowRun
    graph: Graph
    #: The first run of each conversation that is opened now, by the visit's key.
    sessions: dict[str, AgentRun] = field(default_factory=dict)

    def run(self) -> None:
        flow_run = self.flow_run
        decisions = self._decide(flow_transitions.snapshot_of(flow_run, self.graph), self._reports())
        chaos.point("flow.decided")
        while failures := self._open(decisions):
            # A run that cannot be opened is the failure of its node.
            decisions = _joined(decisions, self._decide(decisions.snapshot, failures))
        decisions.events = [self._with_run(event) for event in decisions.events]
        for key, run in self.sessions.items():
            decisions.snapshot["agentSessions"][key] = str(run.pk)
        flow_transitions.keep(flow_run, decisions, source=Source.WORKER)
        for key, run in self.sessions.items():
            FlowVisit.objects.filter(flow_run=flow_run, key=key).update(session=run)
        if flow_run.state.terminal:
            node_runs.stop_all(flow_run)
        chaos.point("flow.in_transaction")

    def _decide(self, snapshot: Snapshot, reports: list[VisitReport]) -> Decisions:
        return kernel.advance(
            self.graph,
            snapshot,
            reports,
            inputs=self.flow_run.inputs,
            clean=flow_transitions.clean_with(self.flow_run),
            started=flow_transitions.started_event(self.flow_run),
        )

    def _reports(self) -> list[VisitReport]:
        """Return what has ended since the last advance. Paused runs that have to be entered again are resumed."""
        visits = list(FlowVisit.objects.open().filter(flow_run=self.flow_run, session__isnull=False).order_by("pk"))
        runs = node_runs.current_runs([visit.session_id for visit in visits if visit.session_id])
        reports = []
        for visit in visits:
            run = runs.get(visit.session_id) if visit.session_id else None
            if run is None:
                continue
            if run.state.terminal:
                reports.append(report_of(visit, run))
            elif visit.reentry is not None and run.state is RunStatus.PAUSED:
                self._enter_again(visit, run)
        return reports

    def _enter_again(self, visit: FlowVisit, run: AgentRun) -> None:
        """Resume the run of a visit, because its flow was resumed."""
        message = visit.reentry or None
        FlowVisit.objects.filter(pk=visit.pk).update(reentry=None)
        try:
            resuming.resume(run.pk, by=f"flow:{self.flow_run.pk}", message=message, source=Source.WORKER)
        except RunRefusal as error:
            # It stays paused, where its page says why; a person decides.
            log.warning("a node cannot be entered again: %s", error, extra={"run_id": str(run.pk)})

    def _open(self, decisions: Decisions) -> list[VisitReport]:
        """Open the runs of the starts that have none. Returns the failures."""
        failures = []
        if flow_transitions.has_ended(decisions):
            return []
        for start in decisions.starts:
            if start.visit.key in self.sessions:
                continue
            try:
                with transaction.atomic():
                    spec = self.graph.nodes[start.visit.node].spec
                    self.sessions[start.visit.key] = node_runs.open_node_run(self.flow_run, start, spec)
            except node_runs.CannotStart as error:
                failures.append(VisitReport(start.visit, failure=NodeFailure(error.error_type, str(error))))
                continue
            chaos.point("flow.node_opened")
        decisions.starts.clear()
        return failures

    def _with_run(self, event: Happened) -> Happened:
        payload, visit = event.payload, event.visit
        run = self.sessions.get(visit.key) if visit is not None else None
        if run is None or not isinstance(payload, NodeStarted):
            return event
        return replace(event, payload=payload.model_copy(update={"run_id": str(run.pk)}))


def _joined(first: Decisions, second: Decisions) -> Decisions:
    """Return two decisions, one made after the other, as one."""
    return Decisions(
        second.snapshot,
        [*first.events, *second.events],
        second.starts,
        [*first.records, *second.records],
        second.failure or first.failure,
        second.has_more,
    )
