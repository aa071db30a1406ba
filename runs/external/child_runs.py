"""Links the runs of sub-agents to the calls that spawned them. Both can come in separate files, in any order.

The parent's file names the agent that a call spawned: an event of the parent, whose ID contains the agent's ID.
Otherwise the child's import names the call. The last resort is the prompt, which both files have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from django.db.models import Exists, OuterRef

from runs.conversation.call_ids import MAX_CALL_ID
from runs.external.event_input import MAX_IDENTIFIER, IncomingEvent
from runs.external.importers.base import ImportedRun
from runs.external.importers.spawned_agents import END, SPAWNING_TOOLS, START, UNNAMED, event_id_of
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from runs.statuses import RunStatus, ToolStatus
from timeline import log
from timeline.events import EventType
from timeline.events.child import ChildRunStarted
from timeline.models import Event, Log

#: Maximum depth of sub-agents to search below a session.
MAX_DEPTH = 16


@dataclass
class FamilyNews:
    """News of an import that may link a child to its parent."""

    #: Children, with the head from their file.
    children: list[tuple[AgentRun, ImportedRun]] = field(default_factory=list)
    #: Reports of parents about the children they spawned.
    spawned: list[tuple[AgentRun, ChildRunStarted]] = field(default_factory=list)
    #: Runs with new calls that may have spawned a child.
    spawning: list[AgentRun] = field(default_factory=list)
    #: Children adopted by a session whose file was imported after theirs.
    adopted: list[AgentRun] = field(default_factory=list)

    def note(self, run: AgentRun, events: Iterable[IncomingEvent]) -> None:
        """Note the new events of a run that are relevant to its children."""
        for event in events:
            if isinstance(event.payload, ChildRunStarted):
                self.spawned.append((run, event.payload))
            elif _may_spawn(event) and run not in self.spawning:
                self.spawning.append(run)


def join(news: FamilyNews) -> list[AgentRun]:
    """Join children with their parents, in the caller's transaction. Return the children that were joined."""
    joined: dict[UUID, AgentRun] = {}
    own = {child.pk: child for child, _ in news.children}
    for parent, call_id, reference, agent in _reported(news):
        child = _locked(parent, reference)
        if child is not None:
            child = own.get(child.pk, child)
            _join(child, parent, call_id, agent)
            joined[child.pk] = child
    for child, head in news.children:
        if child.pk not in joined and not _is_linked(child) and (call := _call_of(child, head)) is not None:
            _join(child, call.run, call.call_id)
            joined[child.pk] = child
    for run in (*news.spawning, *news.adopted):
        for child in _without_call([run.pk, run.parent_run_id]):
            if child.pk not in joined and (call := _call_with_prompt(child, [run.pk])) is not None:
                _join(child, call.run, call.call_id)
                joined[child.pk] = child
    return list(joined.values())


def end_of(child: AgentRun) -> RunStatus | None:
    """Return the final status of a child that a call spawned; None if it may still be working, or has no call."""
    call = AgentRunToolCall.objects.filter(child_run=child).first() if child.parent_run_id else None
    if call is None:
        return None
    names = {kind: event_id_of(kind, _key_of(child)) for kind in (START, END)}
    stored = log.stored_event_ids(call.run_id, list(names.values()))
    # The call of a background agent gets its result immediately.
    is_in_background = names[START] in stored and names[END] not in stored
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


def _reported(news: FamilyNews) -> Iterator[tuple[AgentRun, str, str, str]]:
    """Yield the reports of parents about their children: parent, call ID, reference of the child, agent name."""
    for parent, payload in news.spawned:
        yield parent, payload.call_id or "", payload.run_id or "", payload.agent or ""
    started = Event.objects.filter(log__in=[run.pk for run in news.adopted], type=EventType.CHILD_RUN_STARTED)
    parents = {run.pk: run for run in news.adopted}
    yield from (_of_event(event, parents[event.log_id]) for event in started)
    for child, _ in news.children:
        if _is_linked(child):
            continue
        runs = {run.pk: run for run in _session_of(child)}
        names = event_id_of(START, _key_of(child))
        event = Event.objects.filter(log__in=list(runs), event_id=names).first()
        if event is not None:
            yield _of_event(event, runs[event.log_id])


def _of_event(event: Event, parent: AgentRun) -> tuple[AgentRun, str, str, str]:
    call_id, reference, agent = (str(event.payload.get(name) or "") for name in ("call_id", "run_id", "agent"))
    return parent, call_id, reference, agent


def _session_of(child: AgentRun) -> list[AgentRun]:
    """Return the session of a child, and all runs below it."""
    root = AgentRun.objects.filter(project=child.project_id, external_id=_session_ref(child)).first()
    runs, level = [root] if root else [], [root.pk] if root else []
    for _ in range(MAX_DEPTH):
        below = list(AgentRun.objects.filter(parent_run__in=level, source=AgentRun.Source.IMPORT)) if level else []
        known = {run.pk for run in runs}
        level = [run.pk for run in below if run.pk not in known]
        runs += [run for run in below if run.pk in level]
    return runs


def _session_ref(child: AgentRun) -> str:
    return str(child.external_id).rpartition(":")[0]


def _key_of(child: AgentRun) -> str:
    return str(child.external_id).rpartition(":")[2]


def _call_of(child: AgentRun, head: ImportedRun) -> AgentRunToolCall | None:
    """Return the call that spawned a child, by its ID, or else by its prompt."""
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
    """Return whether a child has a call and a name, so that no search is needed."""
    is_named = child.agent_config.get("agent_id") != UNNAMED
    return is_named and AgentRunToolCall.objects.filter(child_run=child).exists()


def _without_call(parent_ids: Sequence[UUID | None]) -> list[AgentRun]:
    """Return the imported children of these runs whose spawning call is unknown."""
    spawned = AgentRunToolCall.objects.filter(child_run=OuterRef("pk"))
    children = AgentRun.objects.filter(parent_run__in=[pk for pk in parent_ids if pk], source=AgentRun.Source.IMPORT)
    return list(children.filter(~Exists(spawned)).order_by("pk"))


def _locked(parent: AgentRun, reference: str) -> AgentRun | None:
    runs = AgentRun.objects.select_for_update(no_key=True, of=("self",))
    run = runs.filter(project=parent.project_id, external_id=reference).first() if reference else None
    return run if run is not None and run.source == AgentRun.Source.IMPORT and run.pk != parent.pk else None


def _join(child: AgentRun, parent: AgentRun, call_id: str, agent: str = "") -> None:
    """Link a child to the call of its parent, and name it after the call."""
    AgentRunToolCall.objects.filter(run=parent, call_id=call_id, child_run=None).update(child_run=child)
    call = AgentRunToolCall.objects.filter(run=parent, child_run=child).first()
    request = call.input if call is not None and isinstance(call.input, dict) else {}
    changes: dict[str, object] = {}
    if child.parent_run_id != parent.pk and not is_below(parent.pk, child.pk):
        changes["parent_run_id"] = parent.pk
    name = agent or request.get("subagent_type")
    if isinstance(name, str) and name and child.agent_config.get("agent_id") == UNNAMED:
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
    """Return whether a run is `ancestor` or one below it (children and forks)."""
    level, seen = {run_id}, set[UUID]()
    while level and ancestor not in level:
        seen |= level
        rows = AgentRun.with_removed.filter(pk__in=level).values_list("parent_run", "forked_from", "resumed_from")
        level = {pk for row in rows for pk in row if pk is not None} - seen
    return ancestor in level
