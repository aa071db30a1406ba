"""The states of graphs: stores the checkpoints, channel values and pending writes of runs and threads, and reads them.

The site cannot read the values. It knows only the order of the checkpoints, their parents and their metadata.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Length

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
#: Maximum checkpoints in one answer, and characters of texts, unless a single checkpoint has more.
PAGE, PAGE_SIZE = 100, 8 * 1024 * 1024


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
            _delete_replaced({name: owner}, [value for value in values if not value.keeps])
        GraphValue.objects.bulk_create(rows.values(), **options)


def _delete_replaced(owner: Mapping[str, Any], values: Sequence[GraphValueBody]) -> None:
    """Delete the further pieces of texts that these values replace. The new text may have fewer pieces."""
    for value in values:
        if value.index == 0 and value.kind == Kind.WRITE.value:
            place = {"namespace": value.namespace, "checkpoint": value.checkpoint, "key": value.key}
            GraphValue.objects.filter(**owner, **place, kind=value.kind, index__gt=0).delete()


def _check(value: GraphValueBody) -> None:
    if len(value.text) > MAX_PIECE:
        problem = f"the text has {len(value.text):,} characters, of at most {MAX_PIECE:,}: send it in pieces"
        raise Invalid(problem, code="value_too_large", pointer="/text")
    if not value.text.isascii():
        raise Invalid("the text must be ASCII", code="invalid_value", pointer="/text")
    identity = value.namespace + value.checkpoint + value.key
    if len(identity.encode()) > MAX_IDENTITY:
        problem = f"namespace, checkpoint and key have together more than {MAX_IDENTITY} bytes"
        raise Invalid(problem, code="invalid_value", pointer="/key")


def _identity(value: GraphValueBody) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in _IDENTITY)


def _row(owner: AgentRun | GraphThread, value: GraphValueBody) -> GraphValue:
    place: dict[str, Any] = {"thread": owner}
    if isinstance(owner, AgentRun):
        place = {"run": owner, "step_number": owner.step_count}
    # Texts and keys are not masked: only the process reads them.
    facts = value.facts.model_dump(exclude_unset=True)
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
    """Return the run of the project with this ID whose code is a durable function; None without one."""
    try:
        run_id = UUID(thread)
    except ValueError:
        return None
    runs = AgentRun.objects.filter(project=project, pk=run_id, code_version__isnull=False)
    return runs.select_related("project").first()


def of_run(run: AgentRun) -> QuerySet[GraphValue]:
    """Return the values of a run and of the runs that it continues, up to the step of each fork."""
    return GraphValue.objects.filter(journal.within(run)[1])


def page(rows: QuerySet[GraphValue], selection: Selection) -> dict[str, Any]:
    """Return checkpoints as JSON, newest first, with their writes and the channel values that they consist of."""
    chosen = list(islice(_checkpoints(rows, selection), selection.limit + 1))
    whole = _within_a_page(rows, chosen[: selection.limit])
    rest = len(chosen) > len(whole)
    chosen = whole
    texts = dict(rows.filter(pk__in=[each.pk for each in chosen]).values_list("pk", "text"))
    for each in chosen:
        each.text = texts.get(each.pk, "")
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
    # Without the texts: a filter may leave out most of the checkpoints.
    ordered = found.order_by("-checkpoint", "namespace", "-id").select_related("thread").defer("text")
    previous = None
    for row in ordered.iterator(chunk_size=PAGE) if selection.metadata else ordered[: 2 * selection.limit + 2]:
        metadata = row.facts.get("metadata") or {}
        # A checkpoint that a later run of the lineage stored again comes first.
        identity = (row.thread_id, row.namespace, row.checkpoint)
        is_repeated, previous = identity == previous, identity
        if not is_repeated and all(metadata.get(name) == value for name, value in selection.metadata.items()):
            yield row


def _within_a_page(rows: QuerySet[GraphValue], checkpoints: list[GraphValue]) -> list[GraphValue]:
    """Return the first of these checkpoints, at least one, whose writes and channel values fit into an answer."""
    ids = {each.checkpoint for each in checkpoints}
    keys = {key for each in checkpoints for key in each.facts.get("channels") or ()}
    sized = rows.annotate(size=Length("text")).order_by()
    of_checkpoints = sized.filter(checkpoint__in=ids, kind__in=(Kind.CHECKPOINT, Kind.WRITE))
    of_channels = sized.filter(kind=Kind.CHANNEL, key__in=keys)
    sizes: Counter[Any] = Counter()
    for thread, namespace, checkpoint, size in of_checkpoints.values_list("thread", "namespace", "checkpoint", "size"):
        sizes[thread, namespace, checkpoint] += size
    for thread, namespace, key, size in of_channels.values_list("thread", "namespace", "key", "size"):
        sizes[thread, namespace, "channel", key] += size
    total, counted = 0, 0
    for each in checkpoints:
        place = (each.thread_id, each.namespace)
        channels = [(*place, "channel", key) for key in each.facts.get("channels") or ()]
        # A channel value that several checkpoints name is sent once.
        total += sizes[(*place, each.checkpoint)] + sum(sizes.pop(channel, 0) for channel in channels)
        if counted and total > PAGE_SIZE:
            break
        counted += 1
    return checkpoints[:counted]


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
            if row.key in known:  # else the first piece was not sent
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
