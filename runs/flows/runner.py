"""Advances a flow run: reads ended visits, calls the kernel, and stores its decisions with the runs that it starts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import UUID

from django.db import Error, connection, transaction
from django.db.models import F
from pydantic import JsonValue

from agentops.base.http import strict_json
from agentops.base.refusals import Refusal
from runs import chaos
from runs.actions import resume as resuming
from runs.database_errors import concerns_all, concerns_statement, done_alone
from runs.errors import MoveRefused
from runs.flows.kernel import advance as kernel
from runs.flows.kernel.flow_decisions import ADVANCE_FAILED, ADVANCE_LOST, Decisions, NewEvent, NodeFailure, VisitReport
from runs.flows.kernel.graph import Graph
from runs.flows.kernel.snapshot import FlowStatus, Snapshot, visit_of
from runs.lifecycle import flow_transitions, node_runs
from runs.models import AgentRun, AgentRunToolCall, FlowRun, FlowVisit
from runs.models.flows import MOVING
from runs.providers import loading
from runs.statuses import RunStatus, ToolStatus
from timeline.events.flow import FlowCompleted, NodeStarted
from timeline.models import Source

log = logging.getLogger(__name__)
#: Attempts to advance a flow run, without success, after which it fails.
MAX_ATTEMPTS = 5
#: Maximum characters of the last error in the message of a failed flow run.
MAX_ERROR = 500


def attempt(flow_run_id: UUID, advance: Callable[[UUID], bool]) -> bool:
    """Advance a flow run, and count the attempt. Returns whether it can be advanced again immediately.

    An error is logged and, in the last attempt, ends the flow run as failed. A database error that affects all flow
    runs is raised, and the attempt does not count.
    """
    number = _begin(flow_run_id)
    if number is None:
        return False
    if number > MAX_ATTEMPTS:
        text = f"{MAX_ATTEMPTS} attempts to advance the flow run have not ended: their workers were killed, or failed."
        fail(flow_run_id, NodeFailure(ADVANCE_LOST, text))
        return False
    try:
        return advance(flow_run_id)
    except MoveRefused:
        _uncount(flow_run_id)  # another process has changed it; the next call reads the change
        return False
    except Exception as error:
        if concerns_all(error) and not concerns_statement(error):
            _uncount_if_possible(flow_run_id)
            raise
        log.exception("a flow run cannot be advanced: attempt %s", number, extra={"run_id": str(flow_run_id)})
        if number == MAX_ATTEMPTS:
            reason = f"{type(error).__name__}: {error}"[:MAX_ERROR]
            text = f"The flow run could not be advanced in {MAX_ATTEMPTS} attempts. The last error: {reason}"
            fail(flow_run_id, NodeFailure(ADVANCE_FAILED, text))
        return False


def fail(flow_run_id: UUID, failure: NodeFailure) -> None:
    """End a flow run as failed, and stop the runs of its nodes."""
    with transaction.atomic():
        rows = FlowRun.objects.select_for_update(no_key=True, of=("self",))
        flow_run = rows.filter(pk=flow_run_id, status__in=MOVING).first()
        if flow_run is None:
            return
        message = str(flow_transitions.clean_with(flow_run)(failure.message))
        decisions = _failure_decisions(flow_run, NodeFailure(failure.error_type, message))
        flow_transitions.keep(flow_run, decisions, source=Source.WORKER)
        node_runs.stop_all(flow_run)
    log.error("a flow run has failed: %s", failure.error_type, extra={"run_id": str(flow_run_id)})


def _begin(flow_run_id: UUID) -> int | None:
    """Count an attempt, and return its number; None if another worker has the run, or it need not be advanced."""
    with transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                # A crash of the database loses only the count. A crash of the worker loses nothing.
                cursor.execute("SET LOCAL synchronous_commit = off")
        rows = FlowRun.objects.select_for_update(skip_locked=True, no_key=True, of=("self",))
        row = rows.filter(pk=flow_run_id, status__in=MOVING).only("advance_attempts").first()
        if row is None:
            return None
        FlowRun.objects.filter(pk=flow_run_id).update(advance_attempts=F("advance_attempts") + 1)
        return row.advance_attempts + 1


def _uncount(flow_run_id: UUID) -> None:
    """Subtract the attempt that `_begin` counted."""
    rows = FlowRun.objects.filter(pk=flow_run_id, advance_attempts__gt=0)
    rows.update(advance_attempts=F("advance_attempts") - 1)


def _uncount_if_possible(flow_run_id: UUID) -> None:
    """Subtract the attempt, unless the database still fails: then the attempt stays counted."""
    try:
        _uncount(flow_run_id)
    except Error:
        log.warning(
            "an attempt to advance a flow run stays counted: the database fails", extra={"run_id": str(flow_run_id)}
        )


def _failure_decisions(flow_run: FlowRun, failure: NodeFailure) -> Decisions:
    """Return the decisions that end a flow run as failed, even if its snapshot or its definition is unreadable."""
    try:
        graph = flow_transitions.graph_of_run(flow_run)
        return kernel.fail(graph, flow_transitions.snapshot_of(flow_run, graph), failure)
    except Exception:
        log.exception("the snapshot of a flow run cannot be read", extra={"run_id": str(flow_run.pk)})
        ended: Any = {**flow_run.snapshot, "status": FlowStatus.FAILED.value, "inbox": {}}
        completed = FlowCompleted(status=FlowStatus.FAILED.value, error=failure.message)
        return Decisions(ended, [NewEvent(completed)], failure=failure)


# --- Reports ---


def report_of(row: FlowVisit, run: AgentRun) -> VisitReport:
    """Return the report of a visit whose last run is `run`, which has ended."""
    visit = visit_of(row.key)
    if run.state is not RunStatus.COMPLETED:
        text = run.error_message or f"run {run.pk} was {run.status}"
        failed_run = str(run.pk) if run.state is RunStatus.FAILED else None
        reason = run.error_type or run.status_reason or run.status
        return VisitReport(visit, failure=NodeFailure(reason, text, failed_run))
    if row.kind == "agent":
        return VisitReport(visit, run.result if run.structured_output is None else run.structured_output)
    call = AgentRunToolCall.objects.filter(run__root_run=run.root_run_id).order_by("step_number", "id").last()
    if call is None:
        return VisitReport(visit, failure=NodeFailure("no_call", f"run {run.pk} has made no call"))
    if call.status != ToolStatus.COMPLETED:
        text = call.output if isinstance(call.output, str) else ""
        return VisitReport(visit, failure=NodeFailure(f"tool_{call.status}", text or call.status))
    return VisitReport(visit, _parsed(call.output) if row.kind == "tool" else call.output)


def _parsed(output: JsonValue) -> JsonValue:
    """Return the output of a tool. A text that is a JSON object or list is parsed."""
    if not isinstance(output, str) or output.lstrip()[:1] not in ("{", "["):
        return output
    try:
        parsed: JsonValue = strict_json.parse(output)
    except (ValueError, RecursionError):
        return output
    return parsed


# --- Advancing ---

#: Maximum flow runs of one project that are advanced before the next project's turn.
TURN = 10
#: An ID that sorts before the ID of every flow run.
_BEFORE_ALL = UUID(int=0)


def advance_due(is_stopping: Callable[[], bool] = lambda: False) -> bool:
    """Advance every due flow run once, alternating between projects.

    Returns whether some of them can be advanced again immediately; False if `is_stopping` ended the work.
    """
    has_more, last, finished = False, dict[UUID, UUID](), set[UUID]()
    while True:
        projects = FlowRun.objects.due().exclude(project__in=finished).order_by().values_list("project", flat=True)
        waiting = list(projects.distinct())
        for project_id in waiting:
            # Ordered by ID, so that flow runs that cannot be advanced do not block later ones.
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
    """Advance a flow run, or log why it cannot advance. Returns whether it can be advanced again immediately."""
    act = partial(attempt, flow_run_id, advance)
    return done_alone(act, "a flow run can neither be advanced nor ended", run_id=str(flow_run_id))


def advance(flow_run_id: UUID) -> bool:
    """Advance a flow run, in one transaction. Returns whether it can be advanced again immediately."""
    chaos.point("flow.before")
    return loading.repeating(partial(_advance, flow_run_id))


def _advance(flow_run_id: UUID) -> bool:
    """Advance a flow run, unless another worker has locked it. Returns whether it is due again."""
    with transaction.atomic():
        # Skip a row that another worker has locked. NO KEY, because runs refer to the row while they are resumed.
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
    #: The runs that this advance has opened, by the key of their visit.
    sessions: dict[str, AgentRun] = field(default_factory=dict)

    def run(self) -> None:
        flow_run = self.flow_run
        decisions = self._decide(flow_transitions.snapshot_of(flow_run, self.graph), self._reports())
        chaos.point("flow.decided")
        while failures := self._open(decisions):
            # If a run cannot be opened, its node fails.
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
        """Return the reports of visits that ended since the last advance. Also resumes the paused runs of open visits
        if the flow run was resumed.
        """
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
                self._resume_visit(visit, run)
        return reports

    def _resume_visit(self, visit: FlowVisit, run: AgentRun) -> None:
        message = visit.reentry or None
        FlowVisit.objects.filter(pk=visit.pk).update(reentry=None)
        try:
            resuming.resume(run.pk, by=f"flow:{self.flow_run.pk}", message=message, source=Source.WORKER)
        except Refusal as error:
            # The run stays paused, and its page shows the reason; a person decides.
            log.warning("the run of a node cannot be resumed: %s", error, extra={"run_id": str(run.pk)})

    def _open(self, decisions: Decisions) -> list[VisitReport]:
        """Open a run for each visit to start, and clear the list of visits. Returns the reports of the failures."""
        if flow_transitions.has_ended(decisions):
            return []
        failures = []
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

    def _with_run(self, event: NewEvent) -> NewEvent:
        """Return the event with the ID of the run that was opened for its visit, if it starts one."""
        payload, visit = event.payload, event.visit
        run = self.sessions.get(visit.key) if visit is not None else None
        if run is None or not isinstance(payload, NodeStarted):
            return event
        return replace(event, payload=payload.model_copy(update={"run_id": str(run.pk)}))


def _joined(first: Decisions, second: Decisions) -> Decisions:
    """Return two consecutive decisions as one."""
    return Decisions(
        second.snapshot,
        [*first.events, *second.events],
        second.starts,
        [*first.records, *second.records],
        second.failure or first.failure,
        second.has_more,
    )
