"""Recognizes a model call that two traces report, so that it is counted once.

For example, the client library of Anthropic emits a span for each call. If a framework does not make its own span
current, as LangChain does not, that span is a trace of its own beside the trace of the framework.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from uuid import UUID

from runs.external import model_calls
from runs.external.model_calls import CallReports, CallsChanged, chunks
from runs.external.otlp.attribute_names import MODEL_CALL
from runs.external.otlp.trace_plan import Unit, merged_usage
from runs.external.otlp.trace_tree import TraceTree
from runs.models import AgentRun, OtlpItem, ReportedCall

#: Seconds within which both spans of a call end. Some local servers use an ID again after a few hundred answers.
WINDOW_S = 10


def call_names(unit: Unit) -> tuple[str, ...]:
    """Return the names of a model call in its project; empty without a response ID.

    They consist of the response ID, the output tokens, and the time of the end in two overlapping windows: two calls
    have a common name if they ended within `WINDOW_S`.
    """
    response_ids = sorted({item.response_id for item in unit.items if item.response_id})
    if not response_ids:
        return ()
    tokens = sum(merged_usage(reports).get("output_tokens", 0) for reports in unit.counted)
    ended_at = min(item.ended_at for item in unit.items).timestamp()
    windows = (int(ended_at // (2 * WINDOW_S)), int((ended_at + WINDOW_S) // (2 * WINDOW_S)))
    identities = (f"{response_ids[0]}:{tokens}:{half}:{window}" for half, window in enumerate(windows))
    return tuple(f"otlp:{hashlib.sha256(one.encode(errors='replace')).hexdigest()[:40]}" for one in identities)


def is_lone_call(items: Sequence[OtlpItem]) -> bool:
    """Return whether a trace consists of model calls with response IDs, without a span around them."""
    return bool(items) and all(item.kind == MODEL_CALL and item.response_id and not item.parent_id for item in items)


def are_counted(tree: TraceTree, units: Iterable[Unit], project_id: UUID) -> bool:
    """Return whether other runs of the project count all these units, which are all the work of a trace."""
    names = [call_names(unit) for unit in units]
    known: set[str] = set()
    for some in chunks([name for each in names for name in each]):
        rows = ReportedCall.objects.filter(project=project_id, name__in=some, run__removed_at=None)
        known |= set(rows.values_list("name", flat=True))
    return bool(names) and is_lone_call(tree.items) and all(known & set(each) for each in names)


def take_over(run: AgentRun, calls: CallReports) -> None:
    """Count calls in a run that so far the runs of lone calls count, because their traces were filed first."""
    steps_by_holder: dict[UUID, dict[UUID, int]] = {}
    try:
        for call, report in model_calls.holders_of(run, calls.own).items():
            steps_by_holder.setdefault(report.counted_in, {})[call] = calls.own[call]
        for holder_id, steps in steps_by_holder.items():
            items = list(OtlpItem.objects.filter(run=holder_id)[: len(steps) + 1])
            if holder_id != run.pk and is_lone_call(items):
                model_calls.move(run, steps, holder_id)
    except CallsChanged:
        return  # retention removes the other run, or a third run has taken its calls
