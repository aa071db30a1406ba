"""Links the imported runs of sub-agents to the calls that spawned them. Their files may be imported in any order.

If the parent's file names the sub-agent of a call, the parent has an event whose ID contains the sub-agent's ID.
Otherwise the sub-agent's file may name the call. The last resort is the prompt, which is in both files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from django.db.models import Exists, OuterRef

from runs.conversation.call_ids import MAX_CALL_ID
from runs.external.event_input import MAX_IDENTIFIER, IncomingEvent
from runs.external.importers.answer_events import SPAWN_END, SPAWN_START, SPAWNING_TOOLS, UNNAMED_AGENT, spawn_event_id
from runs.external.importers.base import ImportedRun
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from runs.statuses import RunStatus, ToolStatus
from timeline import log
from timeline.events import EventType
from timeline.events.work import ChildRunStarted
from timeline.models import Event, Log

#: Maximum depth of sub-agents to search below a session.
MAX_DEPTH = 16


@dataclass
class LinkHints:
    """The facts in an import that may link a child to its parent."""

    #: Children whose parents are in other files, with the heads from their own files.
    children: list[tuple[AgentRun, ImportedRun]] = field(default_factory=list)
    #: Parents, each with an event that names a child they spawned.
    spawned: list[tuple[AgentRun, ChildRunStarted]] = field(default_factory=list)
    #: Runs with new calls that may have spawned a child.
    spawning: list[AgentRun] = field(default_factory=list)
    #: Children from earlier imports, whose session this import has added as their parent.
    adopted: list[AgentRun] = field(default_factory=list)

    def note(self, run: AgentRun, events: Iterable[IncomingEvent]) -> None:
        """Note which of a run's new events may link it to its children."""
        for event in events:
            if isinstance(event.payload, ChildRunStarted):
                self.spawned.append((run, event.payload))
            elif _may_spawn(event) and run not in self.spawning:
                self.spawning.append(run)


def link_children(hints: LinkHints) -> list[AgentRun]:
    """Link children to their parents, in the caller's transaction. Return the linked children."""
    linked: dict[UUID, AgentRun] = {}
    children = {child.pk: child for child, _ in hints.children}
    for parent, call_id, reference, agent in _spawn_reports(hints):
        child = _lock_child(parent, reference)
        if child is not None:
            child = children.get(child.pk, child)  # the object of this import, which the caller uses, too
            _link(child, parent, call_id, agent)
            linked[child.pk] = child
    for child, head in hints.children:
        if child.pk not in linked and not _is_linked(child) and (call := _spawning_call(child, head)) is not None:
            _link(child, call.run, call.call_id)
            linked[child.pk] = child
    for run in (*hints.spawning, *hints.adopted):
        for child in _without_call([run.pk, run.parent_run_id]):
            if child.pk not in linked and (call := _call_with_prompt(child, [run.pk])) is not None:
                _link(child, call.run, call.call_id)
                linked[child.pk] = child
    return list(linked.values())


def adopt_early_children(run: AgentRun) -> list[AgentRun]:
    """Make a new run the parent of the runs below its session that were imported before it. Return these runs."""
    if not run.session_id or run.parent_run_id is not None:
        return []
    runs = AgentRun.objects.select_for_update(no_key=True, of=("self",)).order_by("pk")
    runs = runs.filter(project=run.project_id, source=AgentRun.Source.IMPORT, session_id=run.session_id)
    children = list(runs.filter(parent_run=None, external_id__startswith=f"{run.external_id}:"))
    adopt(children, run)
    return children


def can_be_below(run: AgentRun, parent: AgentRun) -> bool:
    """Lock `parent`, and return whether `run` can become its child: it exists, and does not descend from `run`."""
    rows = AgentRun.objects.select_for_update(no_key=True, of=("self",))
    return rows.filter(pk=parent.pk).exists() and not is_below(parent.pk, run.pk)


def adopt(children: Iterable[AgentRun], parent: AgentRun) -> None:
    """Make `parent` the parent of these runs, and announce them to the pages that list them."""
    for child in children:
        child.parent_run = parent
        child.save(update_fields=["parent_run"])
        log.announce_run(child.project_id, child.pk)


def end_of(child: AgentRun) -> RunStatus | None:
    """Return the final status of a child run; None if it may still be working, or if its call is not known."""
    call = AgentRunToolCall.objects.filter(child_run=child).first() if child.parent_run_id else None
    if call is None:
        return None
    start_id, end_id = (spawn_event_id(kind, _agent_key(child)) for kind in (SPAWN_START, SPAWN_END))
    stored = log.stored_event_ids(call.run_id, [start_id, end_id])
    # The call of an agent in the background has its result immediately, so the result is not the end of the agent.
    is_in_background = start_id in stored and end_id not in stored
    has_ended = has_answered(child) if is_in_background else call.result_message_id is not None
    if not has_ended:
        return None
    return RunStatus.FAILED if call.status == ToolStatus.ERROR else RunStatus.COMPLETED


def has_answered(run: AgentRun) -> bool:
    """Return whether the last message of a run is an answer that requests no calls."""
    last = AgentRunMessage.objects.filter(run=run).order_by("-position").first()
    if last is None or last.role != AgentRunMessage.Role.ASSISTANT:
        return False
    return not any(part.get("part_kind") == "tool-call" for part in last.content.get("parts", ()))


def _may_spawn(event: IncomingEvent) -> bool:
    return event.type == EventType.TOOL_START and getattr(event.payload, "tool_name", "") in SPAWNING_TOOLS


def _spawn_reports(hints: LinkHints) -> Iterator[tuple[AgentRun, str, str, str]]:
    """Yield the facts about children in the events of parents: parent, call ID, child's reference, agent's name."""
    for parent, payload in hints.spawned:
        yield parent, payload.call_id or "", payload.run_id or "", payload.agent or ""
    started = Event.objects.filter(log__in=[run.pk for run in hints.adopted], type=EventType.CHILD_RUN_STARTED)
    parents = {run.pk: run for run in hints.adopted}
    yield from (_spawn_report(event, parents[event.log_id]) for event in started)
    for child, _ in hints.children:
        if _is_linked(child):
            continue
        runs = {run.pk: run for run in _session_of(child)}
        started_id = spawn_event_id(SPAWN_START, _agent_key(child))
        event = Event.objects.filter(log__in=list(runs), event_id=started_id).first()
        if event is not None:
            yield _spawn_report(event, runs[event.log_id])


def _spawn_report(event: Event, parent: AgentRun) -> tuple[AgentRun, str, str, str]:
    call_id, reference, agent = (str(event.payload.get(name) or "") for name in ("call_id", "run_id", "agent"))
    return parent, call_id, reference, agent


def _session_of(child: AgentRun) -> list[AgentRun]:
    """Return the run of the session to which a child belongs, and all imported runs below that run.

    If the child's reference does not name the session, it is the child's parent.
    """
    session_ref = str(child.external_id).rpartition(":")[0]
    root = AgentRun.objects.filter(project=child.project_id, external_id=session_ref).first() or child.parent_run
    runs, level = [root] if root else [], [root.pk] if root else []
    for _ in range(MAX_DEPTH):
        below = list(AgentRun.objects.filter(parent_run__in=level, source=AgentRun.Source.IMPORT)) if level else []
        known = {run.pk for run in runs}
        level = [run.pk for run in below if run.pk not in known]
        runs += [run for run in below if run.pk in level]
    return runs


def _agent_key(child: AgentRun) -> str:
    return str(child.external_id).rpartition(":")[2]


def _spawning_call(child: AgentRun, head: ImportedRun) -> AgentRunToolCall | None:
    """Return the call that spawned a child: the call that the child's file names, or else a call with its prompt."""
    run_ids = [run.pk for run in _session_of(child) if run.pk != child.pk]
    calls = AgentRunToolCall.objects.filter(run__in=run_ids).select_related("run")
    if head.parent_call_id:
        return calls.filter(call_id=head.parent_call_id[:MAX_CALL_ID]).order_by("-step_number").first()
    return _call_with_prompt(child, run_ids)


def _call_with_prompt(child: AgentRun, run_ids: Sequence[UUID]) -> AgentRunToolCall | None:
    calls = AgentRunToolCall.objects.filter(run__in=run_ids, tool_name__in=SPAWNING_TOOLS, child_run=None)
    for call in calls.select_related("run").order_by("step_number") if child.prompt else ():
        if isinstance(call.input, dict) and call.input.get("prompt") == child.prompt:
            return call
    return None


def _is_linked(child: AgentRun) -> bool:
    """Return whether the call and the name of a child are known."""
    is_named = child.agent_config.get("agent_id") != UNNAMED_AGENT
    return is_named and AgentRunToolCall.objects.filter(child_run=child).exists()


def _without_call(parent_ids: Sequence[UUID | None]) -> list[AgentRun]:
    """Return the imported children of these runs that are linked to no call."""
    spawned = AgentRunToolCall.objects.filter(child_run=OuterRef("pk"))
    children = AgentRun.objects.filter(parent_run__in=[pk for pk in parent_ids if pk], source=AgentRun.Source.IMPORT)
    return list(children.filter(~Exists(spawned)).order_by("pk"))


def _lock_child(parent: AgentRun, reference: str) -> AgentRun | None:
    """Lock and return the imported run with this reference; None if it does not exist or is the parent itself."""
    runs = AgentRun.objects.select_for_update(no_key=True, of=("self",))
    run = runs.filter(project=parent.project_id, external_id=reference).first() if reference else None
    return run if run is not None and run.source == AgentRun.Source.IMPORT and run.pk != parent.pk else None


def _link(child: AgentRun, parent: AgentRun, call_id: str, agent: str = "") -> None:
    """Link a child to the call of its parent. A missing name and title of the child are taken from the call."""
    AgentRunToolCall.objects.filter(run=parent, call_id=call_id, child_run=None).update(child_run=child)
    call = AgentRunToolCall.objects.filter(run=parent, child_run=child).first()
    request = call.input if call is not None and isinstance(call.input, dict) else {}
    changes: dict[str, object] = {}
    if child.parent_run_id != parent.pk and not is_below(parent.pk, child.pk):
        changes["parent_run_id"] = parent.pk
    name = agent or request.get("subagent_type")
    if isinstance(name, str) and name and child.agent_config.get("agent_id") == UNNAMED_AGENT:
        changes["agent_config"] = {**child.agent_config, "agent_id": name[:MAX_IDENTIFIER]}
        Log.objects.filter(pk=child.pk).update(node_id=name[:MAX_IDENTIFIER])
    title = request.get("description")
    if isinstance(title, str) and title and child.title in ("", (child.prompt or "").strip().partition("\n")[0][:200]):
        changes["title"] = title[:200]
    if changes:
        for field_name, value in changes.items():
            setattr(child, field_name, value)
        child.save(update_fields=list(changes))
        log.announce_run(child.project_id, child.pk)


def is_below(run_id: UUID, ancestor: UUID) -> bool:
    """Return whether a run is `ancestor`, or descends from it as a child, fork or continuation."""
    level, seen = {run_id}, set[UUID]()
    while level and ancestor not in level:
        seen |= level
        rows = AgentRun.with_removed.filter(pk__in=level).values_list("parent_run", "forked_from", "resumed_from")
        level = {pk for row in rows for pk in row if pk is not None} - seen
    return ancestor in level
