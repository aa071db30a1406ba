"""Labels of runs. The caller checks the permission (Action.OPERATE)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from django.db import transaction

from agentops.accounts.audit import Actor, record
from agentops.accounts.names import one_line
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.actions.annotations.annotation_audit import AnnotationAuditAction
from runs.errors import InvalidAnnotation, RunNotFound
from runs.lifecycle.title_limits import MAX_LABEL, MAX_LABELS
from runs.models import AgentRun
from timeline.display import clean


def change_labels(
    run_id: UUID,
    *,
    by: Actor,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
    replace: Iterable[str] | None = None,
) -> AgentRun:
    """Add and remove labels of a run, or replace all of them. Labels keep their order; new ones come last.

    Raises `InvalidAnnotation` for an invalid label or too many of them, and `RunNotFound`.
    """
    # Imported labels may be longer, or contain secrets that an earlier version did not recognise. Users see and remove
    # them in masked form.
    added, removed = _checked(add), {clean(label.strip()) for label in remove}
    with transaction.atomic():
        # Other requests change labels concurrently, and retention hides runs.
        rows = AgentRun.objects.select_for_update(no_key=True, of=("self",)).select_related("project")
        run = rows.filter(pk=run_id).first()
        if run is None:
            raise RunNotFound("no such run")
        before = list(run.labels)
        kept = before if replace is None else _checked(replace)
        labels = [label for label in dict.fromkeys([*kept, *added]) if clean(label) not in removed]
        if len(labels) > max(MAX_LABELS, len(before)):
            raise InvalidAnnotation(f"a run can have at most {MAX_LABELS} labels, not {len(labels)}", pointer="/labels")
        if labels != before:
            run.labels = labels
            run.save(update_fields=["labels"])
            record(
                by, AnnotationAuditAction.LABELS_CHANGED, project=run.project, obj=run,
                before={"labels": before}, after={"labels": labels},
            )  # fmt: skip
    return run


def change_labels_of_many(run_ids: Iterable[UUID], *, by: Actor, add: Sequence[str], remove: Sequence[str]) -> int:
    """Add and remove labels of several runs, one after the other. Returns how many runs were changed or checked.

    Raises `InvalidAnnotation` at the first run that would have too many labels, and then changes nothing.
    """
    count = 0
    with transaction.atomic():
        # In a fixed order, so that two concurrent bulk changes do not deadlock.
        for run_id in sorted(set(run_ids)):
            change_labels(run_id, by=by, add=add, remove=remove)
            count += 1
    return count


def _checked(labels: Iterable[str]) -> list[str]:
    """Return the labels in stored form: one line each, redacted."""
    checked = []
    for label in labels:
        text = one_line(label, MAX_LABEL + 1)
        if not 1 <= len(text) <= MAX_LABEL:
            raise InvalidAnnotation(
                f"a label must be one line of 1 to {MAX_LABEL} characters, not {label[:64]!r}", pointer="/labels"
            )
        checked.append(REDACTOR.clean_text(text)[0])
    return list(dict.fromkeys(checked))
