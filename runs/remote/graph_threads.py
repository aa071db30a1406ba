"""Threads of graphs that processes execute outside of runs, and changes of the state of a run, which fork it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from uuid_utils.compat import uuid7

from agentops.accounts.models import Project
from agentops.base.database_clock import Now
from agentops.base.refusals import Conflict, Invalid
from runs.actions import fork
from runs.conversation import ancestry
from runs.lifecycle import inbox
from runs.models import AgentRun, GraphThread, GraphValue
from runs.remote import graph_states
from runs.remote.bodies import CopyThread, DeleteCheckpoints, DeleteThread, PruneThread, PutInThread, ThreadOperation
from runs.statuses import RunStatus

Kind = GraphValue.Kind
#: Steps of a conversation in which a checkpoint to fork from is looked up.
MAX_STEPS = 10_000
#: Values that are copied at a time.
COPIED = 50


def perform(project: Project, operations: Sequence[ThreadOperation], *, by: str) -> dict[str, Any]:
    """Carry out operations in order and in one transaction, and return their results. Raises `Refusal`."""
    #: The forks of this request: a large state is stored by several operations.
    forks: dict[str, AgentRun] = {}
    with transaction.atomic():
        return {"results": [_perform(project, operation, forks, by) for operation in operations]}


def _perform(project: Project, operation: ThreadOperation, forks: dict[str, AgentRun], by: str) -> Mapping[str, Any]:
    match operation:
        case PutInThread():
            return _put(project, operation, forks, by)
        case DeleteThread():
            threads = _locked(_own_threads(project, operation.thread))
            return {"threads": threads.delete()[1].get(GraphThread._meta.label, 0)}
        case CopyThread():
            return _copy(project, operation)
        case PruneThread():
            return _prune(project, operation)
        case DeleteCheckpoints():
            return _delete_checkpoints(project, operation.run_ids)


def _own_threads(project: Project, name: str) -> QuerySet[GraphThread]:
    """Return the threads with this name. Raises `Conflict` for a run, whose values the site keeps."""
    if graph_states.run_named(project, name) is not None:
        raise Conflict(f"{name} is a run: delete or fork the run itself", code="thread_is_run")
    return GraphThread.objects.filter(project=project, name=name)


def _locked(threads: QuerySet[GraphThread]) -> QuerySet[GraphThread]:
    """Lock threads until the end of the transaction, so that other requests cannot store values in them."""
    return GraphThread.objects.filter(pk__in=[thread.pk for thread in threads.select_for_update().order_by("pk")])


def _put(project: Project, operation: PutInThread, forks: dict[str, AgentRun], by: str) -> Mapping[str, Any]:
    name = operation.thread
    run = graph_states.run_named(project, name)
    if run is None:
        graph_states.put(_touched(project, name), operation.values)
        return {"thread": name}
    if name in forks:
        graph_states.put(forks[name], operation.values)
        return {"thread": str(forks[name].pk)}
    owner = _waiting_fork(run)
    if owner is None and all(value.kind == Kind.WRITE.value for value in operation.values):
        return {"thread": name, "deferred": True}
    # The parts of a large state, until the last one arrives.
    parts = f"fork of {run.pk}: {operation.fork}"
    if not operation.completes and operation.fork is not None:
        graph_states.put(_touched(project, parts), operation.values)
        return {"thread": name}
    owner = forks[name] = owner or _forked(run, operation.parent, by)
    if operation.fork is not None:
        _move(project, parts, owner)
    graph_states.put(owner, operation.values)
    return {"thread": str(owner.pk)}


def _move(project: Project, name: str, owner: AgentRun) -> None:
    """Move the values of a thread to a fork, and delete the thread."""
    for thread in _locked(GraphThread.objects.filter(project=project, name=name)):
        values = GraphValue.objects.filter(thread=thread)
        for row in values.defer("text"):
            place = {"kind": row.kind, "namespace": row.namespace, "checkpoint": row.checkpoint}
            GraphValue.objects.filter(run=owner, **place, key=row.key, index=row.index).delete()
        values.update(run=owner, thread=None, step_number=owner.step_count)
        thread.delete()


def _waiting_fork(run: AgentRun) -> AgentRun | None:
    """Return a fork that no process has claimed yet, locked until the end of the transaction; None for other runs."""
    if run.forked_from_id is None:
        return None
    locked = inbox.lock_run(run.pk, "project")
    return locked if locked.state is RunStatus.QUEUED and locked.lease_epoch == 0 else None


def _touched(project: Project, name: str) -> GraphThread:
    """Return a thread, locked until the end of the transaction. Creates it if necessary."""
    threads = GraphThread.objects.filter(project=project, name=name)
    # The UPDATE takes the lock. It matches no row if the thread does not exist, or was deleted in between.
    while not threads.update(modified_at=Now()):
        threads.get_or_create(project=project, name=name, defaults={"modified_at": Now()})
    return threads.get()


def _forked(run: AgentRun, parent: str, by: str) -> AgentRun:
    """Fork a run from the step at which a checkpoint was stored. Raises `Invalid`."""
    rows = graph_states.of_run(run).filter(kind=Kind.CHECKPOINT)
    checkpoint = rows.filter(checkpoint=parent).order_by("-id").first()
    if checkpoint is None:
        raise Invalid(f"run {run.pk} has no checkpoint {parent[:64]!r}", code="no_checkpoint", pointer="/parent")
    steps = [step for step in ancestry.steps_of(run, MAX_STEPS) if step <= checkpoint.step_number]
    if not steps:
        problem = "the run had made no step at this checkpoint: start another run"
        raise Invalid(problem, code="no_checkpoint", pointer="/parent")
    return fork.fork(run.pk, by=by, step=steps[0])


def _copy(project: Project, operation: CopyThread) -> Mapping[str, Any]:
    """Copy all values of a thread, or all that a run reads, to a thread. Existing ones are replaced."""
    _own_threads(project, operation.to)
    rows = graph_states.values_of(project, operation.thread).order_by("id")
    newest = {row[:-1]: row[-1] for row in rows.values_list("kind", "namespace", "checkpoint", "key", "index", "pk")}
    if newest:
        thread = _touched(project, operation.to)
        thread.values.exclude(pk__in=newest.values()).delete()
        ids = list(newest.values())
        for start in range(0, len(ids), COPIED):
            copies = list(GraphValue.objects.filter(pk__in=ids[start : start + COPIED]).exclude(thread=thread))
            for row in copies:
                row.pk, row.run_id, row.thread_id, row.step_number = uuid7(), None, thread.pk, 0
            GraphValue.objects.bulk_create(copies)
    return {"values": len(newest)}


def _prune(project: Project, operation: PruneThread) -> Mapping[str, Any]:
    """Delete the values that the newest checkpoint of each namespace does not need."""
    rows = GraphValue.objects.filter(thread__in=_locked(_own_threads(project, operation.thread)))
    newest: dict[str, GraphValue] = {}
    for row in rows.filter(kind=Kind.CHECKPOINT).order_by("checkpoint").defer("text"):
        newest[row.namespace] = row
    deleted = 0
    for namespace, row in newest.items():
        inside = rows.filter(namespace=namespace)
        needed = _needed_checkpoints(inside, row)
        deleted += inside.exclude(kind=Kind.CHANNEL).exclude(checkpoint__in=needed).delete()[0]
        kept = inside.filter(kind=Kind.CHECKPOINT, checkpoint__in=needed)
        keys = {key for facts in kept.values_list("facts", flat=True) for key in facts.get("channels") or ()}
        deleted += inside.filter(kind=Kind.CHANNEL).exclude(key__in=keys).delete()[0]
    return {"values": deleted}


def _needed_checkpoints(rows: Any, newest: GraphValue) -> set[str]:
    """Return the newest checkpoint, and the ancestors that it needs.

    For a channel that is stored as changes, they are the ancestors back to its last complete value.
    """
    needed = {newest.checkpoint}
    by_id = dict(rows.filter(kind=Kind.CHECKPOINT).values_list("checkpoint", "facts"))
    missing = set(newest.facts.get("deltas") or ())
    parent = newest.facts.get("parent")
    # The process has sent the facts: a checkpoint may even name itself as its parent.
    while missing and parent in by_id and parent not in needed:
        needed.add(parent)
        missing &= set(by_id[parent].get("deltas") or ())
        parent = by_id[parent].get("parent")
    return needed


def _delete_checkpoints(project: Project, run_ids: Sequence[str]) -> Mapping[str, Any]:
    rows = GraphValue.objects.filter(thread__project=project)
    found = rows.filter(kind=Kind.CHECKPOINT, facts__metadata__run_id__in=list(run_ids))
    deleted = 0
    for thread, namespace, checkpoint in list(found.values_list("thread", "namespace", "checkpoint")):
        deleted += rows.filter(thread=thread, namespace=namespace, checkpoint=checkpoint).delete()[0]
    return {"values": deleted}
