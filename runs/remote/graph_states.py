"""The states of graphs: stores the checkpoints, channel values and pending writes of runs and threads, and reads them.

The site cannot read the values. It knows only the order of the checkpoints, their parents and their metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from agentops.accounts.models import Project
from agentops.base import database_clock
from agentops.base.redaction.redact import MODEL_INPUT
from agentops.base.refusals import Invalid
from runs.models import AgentRun, GraphThread, GraphValue
from runs.remote import journal
from runs.remote.bodies import GraphValueBody
from runs.remote.values import MAX_PIECE

Kind = GraphValue.Kind
#: The columns that identify a value of an owner.
_IDENTITY = ["kind", "namespace", "checkpoint", "key", "index"]
#: Maximum bytes of the identity of a value, because an index of PostgreSQL holds at most 2,700.
MAX_IDENTITY = 1_200
#: Checkpoints in one answer.
PAGE = 100


def put(owner: AgentRun | GraphThread, values: Sequence[GraphValueBody]) -> None:
    """Store values. Existing ones are replaced, unless `keeps` is true. Raises `Invalid`."""
    for value in values:
        _check(value)
    for keeps in (True, False):
        # A statement cannot replace the same row twice, so the last of two equal values counts.
        rows = {_identity(value): _row(owner, value) for value in values if value.keeps is keeps}
        if not rows:
            continue
        name = "run" if isinstance(owner, AgentRun) else "thread"
        options: dict[str, Any] = {"ignore_conflicts": True}
        if not keeps:
            changed = ["facts", "text", "step_number", "created_at"]
            options = {"update_conflicts": True, "unique_fields": [name, *_IDENTITY], "update_fields": changed}
        GraphValue.objects.bulk_create(rows.values(), **options)


def _check(value: GraphValueBody) -> None:
    if len(value.text) > MAX_PIECE:
        problem = f"the text has {len(value.text):,} characters, of at most {MAX_PIECE:,}: send it in pieces"
        raise Invalid(problem, code="value_too_large", pointer="/text")
    if not value.text.isascii():
        raise Invalid("the text must be ASCII", code="invalid_value", pointer="/text")
    identity = value.namespace + value.checkpoint + value.key
    if len(identity.encode(errors="replace")) > MAX_IDENTITY or "\0" in identity:
        problem = f"namespace, checkpoint and key have together more than {MAX_IDENTITY} bytes, or contain NUL"
        raise Invalid(problem, code="invalid_value", pointer="/key")


def _identity(value: GraphValueBody) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in _IDENTITY)


def _row(owner: AgentRun | GraphThread, value: GraphValueBody) -> GraphValue:
    place: dict[str, Any] = {"thread": owner}
    if isinstance(owner, AgentRun):
        place = {"run": owner, "step_number": owner.step_count}
    # Texts and keys are not masked: only the process reads them.
    facts = {**value.facts}
    if "metadata" in facts:
        facts["metadata"] = MODEL_INPUT.clean(facts["metadata"])[0]
    fields = dict(zip(_IDENTITY, _identity(value), strict=True))
    return GraphValue(**place, **fields, facts=facts, text=value.text, created_at=database_clock.now())


@dataclass(frozen=True)
class Selection:
    """Which checkpoints to read."""

    #: None: of all sub-graphs.
    namespace: str | None = None
    checkpoint: str = ""
    #: Only checkpoints with smaller IDs.
    before: str = ""
    #: Members of their metadata.
    metadata: Mapping[str, Any] = field(default_factory=dict)
    limit: int = PAGE


def selection_of(query: Mapping[str, Any]) -> Selection:
    """Return the selection by the parameters of a request. They are valid."""
    return Selection(
        namespace=query.get("namespace"),
        checkpoint=query.get("checkpoint", ""),
        before=query.get("before", ""),
        metadata=query.get("metadata", {}),
        limit=query.get("limit", PAGE),
    )


def values_of(project: Project, thread: str | None) -> QuerySet[GraphValue]:
    """Return the values of a thread, or of a run and the runs that it continues, or without one, of all threads."""
    if thread is None:
        return GraphValue.objects.filter(thread__project=project)
    if (run := run_named(project, thread)) is not None:
        return of_run(run)
    return GraphValue.objects.filter(thread__project=project, thread__name=thread)


def run_named(project: Project, thread: str) -> AgentRun | None:
    """Return the remote run of the project with this ID; None without one."""
    try:
        run_id = UUID(thread)
    except ValueError:
        return None
    return AgentRun.objects.remote().select_related("project").filter(project=project, pk=run_id).first()


def of_run(run: AgentRun) -> QuerySet[GraphValue]:
    """Return the values of a run and of the runs that it continues, up to the step of each fork."""
    return GraphValue.objects.filter(journal.within(run)[1])


def page(rows: QuerySet[GraphValue], selection: Selection) -> dict[str, Any]:
    """Return checkpoints as JSON, newest first, with their writes and the channel values that they consist of."""
    chosen = list(islice(_checkpoints(rows, selection), selection.limit + 1))
    rest = len(chosen) > selection.limit
    chosen = chosen[: selection.limit]
    writes = _writes(rows, chosen)
    return {
        "checkpoints": [
            _as_json(each, writes.get((each.thread_id, each.namespace, each.checkpoint), [])) for each in chosen
        ],
        "channels": _channels(rows, chosen),
        "before": chosen[-1].checkpoint if rest else None,
    }


def _checkpoints(rows: QuerySet[GraphValue], selection: Selection) -> Iterator[GraphValue]:
    """Yield the selected checkpoints, newest first: of each, its first piece."""
    found = rows.filter(kind=Kind.CHECKPOINT, index=0)
    if selection.namespace is not None:
        found = found.filter(namespace=selection.namespace)
    if selection.checkpoint:
        found = found.filter(checkpoint=selection.checkpoint)
    if selection.before:
        found = found.filter(checkpoint__lt=selection.before)
    ordered = found.order_by("-checkpoint", "namespace", "-id").select_related("thread")
    previous = None
    for row in ordered.iterator(chunk_size=PAGE) if selection.metadata else ordered[: 2 * selection.limit + 2]:
        metadata = row.facts.get("metadata") or {}
        # A checkpoint that a later run of the lineage stored again comes first.
        identity = (row.thread_id, row.namespace, row.checkpoint)
        is_repeated, previous = identity == previous, identity
        if not is_repeated and all(metadata.get(name) == value for name, value in selection.metadata.items()):
            yield row


def _as_json(row: GraphValue, writes: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "thread": row.thread.name if row.thread is not None else None,
        "namespace": row.namespace,
        "id": row.checkpoint,
        "facts": row.facts,
        "text": row.text,
        "writes": writes,
    }


def _writes(rows: QuerySet[GraphValue], checkpoints: Sequence[GraphValue]) -> dict[Any, list[dict[str, Any]]]:
    """Return the pending writes of checkpoints as JSON, by thread, namespace and checkpoint."""
    found = rows.filter(kind=Kind.WRITE, checkpoint__in={each.checkpoint for each in checkpoints})
    by_checkpoint: dict[Any, dict[str, dict[str, Any]]] = {}
    for row in found.order_by("id", "index") if checkpoints else ():
        known = by_checkpoint.setdefault((row.thread_id, row.namespace, row.checkpoint), {})
        if row.index:
            known[row.key]["text"] += row.text
        else:
            known[row.key] = {"key": row.key, "facts": row.facts, "text": row.text}
    return {place: list(writes.values()) for place, writes in by_checkpoint.items()}


def _channels(rows: QuerySet[GraphValue], checkpoints: Iterable[GraphValue]) -> list[dict[str, Any]]:
    """Return the channel values of checkpoints as JSON."""
    wanted = {(each.thread_id, each.namespace, key) for each in checkpoints for key in each.facts.get("channels") or ()}
    if not wanted:
        return []
    _, namespaces, keys = (set(column) for column in zip(*wanted, strict=True))
    found = rows.filter(kind=Kind.CHANNEL, namespace__in=namespaces, key__in=keys).select_related("thread")
    values: dict[tuple[Any, ...], dict[str, Any]] = {}
    pieces: dict[tuple[Any, ...], dict[int, str]] = {}
    for row in found.order_by("id"):
        place = (row.thread_id, row.namespace, row.key)
        if place in wanted:
            thread = row.thread.name if row.thread is not None else None
            values[place] = {"thread": thread, "namespace": row.namespace, "key": row.key}
            pieces.setdefault(place, {})[row.index] = row.text
    return [
        {**value, "text": "".join(text for _, text in sorted(pieces[place].items()))} for place, value in values.items()
    ]
