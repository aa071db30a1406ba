"""Stores the entries of an OTLP request: each entry once, and each trace or session in a separate transaction.

When related entries have arrived, a worker files them under runs (runs.external.otlp.settling).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from django.db import IntegrityError, transaction

from agentops.accounts.models import Project
from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.external.ingest import Sender
from runs.external.otlp.log_events import key_of, kind_of_log, log_facts, time_of
from runs.external.otlp.received import TOO_MANY, ExportReport, ReceivedLog, ReceivedSpan
from runs.external.otlp.settling import QUIET
from runs.external.otlp.span_facts import facts_of, is_known_work, kind_of
from runs.lifecycle import wake
from runs.models import OtlpGroup, OtlpItem

#: Maximum entries of one trace or session.
MAX_ITEMS = 50_000
#: Code and text of the reasons for which entries are rejected.
_SAME_ID = ("span_id_conflict", "the trace has another span with this ID")
_FULL = (TOO_MANY, f"a trace or a session may have {MAX_ITEMS} entries")


def record_spans(sender: Sender, spans: Sequence[ReceivedSpan], report: ExportReport) -> None:
    """Store the spans of each trace, and count the results in `report`. A repeated span changes nothing."""
    by_trace: dict[str, dict[str, OtlpItem]] = {}
    for span in spans:
        report.unknown_operations += not is_known_work(span)
        _add(by_trace.setdefault(span.trace_id, {}), _span_item(span), report)
    for trace_id, items in by_trace.items():
        _record(sender, trace_id, items, report)


def record_logs(sender: Sender, logs: Sequence[ReceivedLog], report: ExportReport) -> None:
    """Store the log events of each session of a coding agent, and count the results in `report`.

    Other log records are rejected.
    """
    by_session: dict[str, dict[str, OtlpItem]] = {}
    for record in logs:
        key = key_of(record)
        if key is None:
            report.reject("unknown_log_event", "not an event of a known coding agent with a session ID")
        else:
            _add(by_session.setdefault(key, {}), _log_item(record), report)
    for key, items in by_session.items():
        _record(sender, key, items, report)


def _add(items: dict[str, OtlpItem], item: OtlpItem, report: ExportReport) -> None:
    """Add an entry to `items`. One with the ID of an earlier entry counts as known, or as rejected if it differs."""
    first = items.setdefault(item.item_id, item)
    if first.sha256 != item.sha256:
        report.reject(*_SAME_ID)
    elif first is not item:
        report.known += 1


def _record(sender: Sender, key: str, items: dict[str, OtlpItem], report: ExportReport) -> None:
    """Store the entries of one trace or session, and count the results in `report`."""
    store = partial(store_items, sender, key, items)
    try:
        stored = store()
    except IntegrityError:
        # Two requests opened the group concurrently. It exists now.
        stored = store()
    report.accepted += stored.new
    report.known += stored.known
    for reason, count in ((_SAME_ID, stored.conflicts), (_FULL, stored.beyond)):
        if count:
            report.reject(*reason, count)


class StoredItems(NamedTuple):
    """Numbers of entries."""

    new: int
    known: int
    #: Entries that differ from the stored entry with their ID.
    conflicts: int
    #: Entries beyond the limit.
    beyond: int


@transaction.atomic
def store_items(sender: Sender, key: str, items: dict[str, OtlpItem]) -> StoredItems:
    """Store the new items of one trace or session in one transaction."""
    now = database_clock.now()
    group = _locked_group(sender.project, key, now)
    # All stored IDs are read, because a request can have more entries than a query can have parameters.
    known = {item_id: bytes(digest) for item_id, digest in group.items.values_list("item_id", "sha256")}
    conflicts = sum(known.get(item_id, item.sha256) != item.sha256 for item_id, item in items.items())
    new = [item for item_id, item in items.items() if item_id not in known]
    room = max(MAX_ITEMS - len(known), 0)
    if new[:room]:
        for item in new[:room]:
            item.group, item.run_id, item.received_at, item.pk = group, group.run_id, now, None
        OtlpItem.objects.bulk_create(new[:room], batch_size=500)
        group.received_at, group.sender = now, sender.actor[:200]
        group.due_at = min(group.due_at or now + QUIET, now + QUIET)
        group.save(update_fields=["received_at", "due_at", "sender"])
        wake.ask_for(wake.SETTLE, countdown_s=QUIET.total_seconds())
    return StoredItems(len(new[:room]), len(items) - len(new) - conflicts, conflicts, len(new[room:]))


def _locked_group(project: Project, key: str, now: datetime) -> OtlpGroup:
    """Return the group of a trace or session with its row locked. Creates the group if it does not exist."""
    while True:
        OtlpGroup.objects.get_or_create(project=project, key=key, defaults={"received_at": now})
        group = OtlpGroup.objects.select_for_update().filter(project=project, key=key).first()
        if group is not None:
            return group
        # A worker deleted it concurrently, because it had no entries of an agent.


def _span_item(span: ReceivedSpan) -> OtlpItem:
    kind = kind_of(span)
    facts: Any = REDACTOR.clean(facts_of(span, kind))[0]  # type: ignore[arg-type]
    began = span.started_at or span.ended_at or database_clock.now()
    return OtlpItem(
        item_id=span.span_id,
        parent_id=span.parent_id,
        has_remote_parent=span.has_remote_parent,
        kind=kind,
        started_at=began,
        ended_at=max(span.ended_at or began, began),
        sha256=span.sha256,
        response_id=facts.get("response_id", "")[:200],
        facts=facts,
    )


def _log_item(record: ReceivedLog) -> OtlpItem:
    facts: Any = REDACTOR.clean(log_facts(record))[0]  # type: ignore[arg-type]
    at = time_of(record) or database_clock.now()
    return OtlpItem(
        item_id=record.sha256.hex()[:32],
        kind=kind_of_log(record),
        started_at=at,
        ended_at=at,
        sha256=record.sha256,
        facts=facts,
    )
