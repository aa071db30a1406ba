"""Stores, as child runs, the sub-agents of a worker's session. Their messages are lines, as in session files."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q

from agentops.base import database_clock
from runs.external.event_input import RejectedEvent
from runs.external.import_runs import import_items
from runs.external.importers.answer_events import event_id, identifier_or_none, user_message
from runs.external.importers.base import ImportedRun, ImportFile, ImportRefused, Item
from runs.external.importers.claude_conversation import MESSAGES, ClaudeConversation, ConversationLine
from runs.lifecycle.session_subagents import completed_event, run_ref
from runs.lifecycle.title_limits import MAX_TITLE
from runs.models import AgentRun, AgentRunToolCall
from runs.statuses import TERMINAL, RunStatus
from timeline import log
from timeline.events.work import ChildRunStarted
from timeline.log import Entry
from timeline.models import Source

logger = logging.getLogger(__name__)
#: The name given to a sub-agent whose call names no type.
AGENT = "sub-agent"
#: A placeholder, because lines belong to a file.
_FILE = ImportFile("session")
#: The program's statuses of a background task that has ended.
_TASK_ENDS = {"completed": RunStatus.COMPLETED, "failed": RunStatus.FAILED, "stopped": RunStatus.STOPPED}
#: Maximum lines kept for calls that are not stored yet.
MAX_EARLY = 1_000


@dataclass
class _Agent:
    """A sub-agent, and the call that spawned it."""

    head: ImportedRun
    call: AgentRunToolCall
    #: Its task, if the program does not send it as a line; otherwise empty.
    prompt: str = ""
    #: The lines of it that a later line may continue: see `_unfinished`.
    lines: list[ConversationLine] = field(default_factory=list)


class SessionAgents:
    """The sub-agents of a run whose lease a worker holds with an epoch."""

    def __init__(self, run_id: UUID, epoch: int) -> None:
        self._run_id, self._epoch = run_id, epoch
        #: The sub-agents by the ID of the call that spawned them.
        self._agents: dict[str, _Agent] = {}
        #: Lines whose call is not stored yet.
        self._early: list[Mapping[str, Any]] = []

    def add(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Store the lines of sub-agents. Invalid lines are left out. Raises `LeaseLost`.

        After any error, nothing is stored, and the caller may retry with the same lines.
        """
        early, agents = self._early, {call_id: replace(agent) for call_id, agent in self._agents.items()}
        try:
            with self._held() as run:
                self._early = []
                for data in [*early, *lines]:
                    if data.get("type") == "system":
                        self._end_if_reported(run, data)
                    elif data.get("type") in MESSAGES:
                        self._add(run, data)
        except BaseException:
            self._early, self._agents = early, agents
            raise

    def end(self, call_id: str, status: RunStatus) -> None:
        """End the sub-agent of a call, if any. Raises `LeaseLost`."""
        with self._held() as run:
            self._end(run, run_ref(run.pk, call_id), status)

    def end_all(self) -> None:
        """End all open sub-agents of this run and of the run that it resumes, because their program has ended.

        Raises `LeaseLost`.
        """
        with self._held() as run:
            for run_id in filter(None, (run.pk, run.resumed_from_id)):
                agents = AgentRun.objects.filter(project=run.project, external_id__startswith=run_ref(run_id, ""))
                for child in agents.exclude(status__in=TERMINAL).order_by("pk"):
                    self._end(run, str(child.external_id), RunStatus.STOPPED)

    @contextmanager
    def _held(self) -> Iterator[AgentRun]:
        """Open a transaction, and yield the run. Raises `LeaseLost` if another worker has the run."""
        with transaction.atomic():
            log.hold(self._run_id, self._epoch)
            yield AgentRun.objects.select_related("project").get(pk=self._run_id)

    def _add(self, run: AgentRun, data: Mapping[str, Any]) -> None:
        """Store a line of a sub-agent, or keep it until the call of the sub-agent is stored."""
        call_id = str(data.get("parent_tool_use_id"))
        uuid = data.get("uuid")
        line = ConversationLine(_FILE, data, str(uuid) if uuid else event_id(str(data)), at=database_clock.now())
        try:
            line.check_message()
            agent = self._agent(run, call_id, line)
            if agent is None:
                self._early = [*self._early[1 - MAX_EARLY :], data]
                return
            agent.lines = [*(one for one in agent.lines if one.line_id != line.line_id), line]
            with transaction.atomic():
                self._store(run, agent)
        except (ImportRefused, RejectedEvent) as error:
            logger.warning("a line of a sub-agent cannot be stored: %s", error, extra={"run_id": str(run.pk)})

    def _agent(self, run: AgentRun, call_id: str, first: ConversationLine) -> _Agent | None:
        """Return the sub-agent of a call; None if the call is not stored yet."""
        if call_id not in self._agents:
            # Requested by the main agent, or by another sub-agent.
            calls = AgentRunToolCall.objects.filter(Q(run=run) | Q(run__external_id__startswith=run_ref(run.pk, "")))
            call = calls.filter(call_id=call_id).select_related("run").order_by("-pk").first()
            if call is None:
                return None
            prompt = "" if first.text or not isinstance(call.input, dict) else str(call.input.get("prompt") or "")
            self._agents[call_id] = _Agent(_head(run, call, first), call, prompt)
        return self._agents[call_id]

    def _store(self, run: AgentRun, agent: _Agent) -> None:
        """Store the new events of a sub-agent's lines, and report a new sub-agent in the run."""
        parents = {agent.head.parent_ref: agent.call.run}
        items: list[Item] = [agent.head]
        if agent.prompt:
            # Its fixed event ID ensures that the prompt is stored once.
            items.append(user_message(agent.head.run_ref, "prompt", agent.prompt, agent.head.created_at))
        items += ClaudeConversation(agent.head.run_ref, agent.lines).events()
        report = import_items(run.project, items, by=f"run:{run.pk}", is_live=True, parents=parents)
        agent.lines = _unfinished(agent.lines)
        [child] = report.runs
        if child.pk in report.opened and agent.call.run_id == run.pk:
            started = ChildRunStarted(run_id=str(child.pk), agent=agent.head.agent, call_id=agent.call.call_id)
            self._append(run, Entry(started, step=agent.call.step_number, ref_id=child.pk))

    def _end(self, run: AgentRun, reference: str, status: RunStatus) -> None:
        """End a sub-agent's run, if it exists and has not ended, and report the end in the run."""
        child = AgentRun.objects.filter(project=run.project, external_id=reference).first()
        if child is None or child.state.terminal:
            return
        head = ImportedRun(run_ref=reference, agent=AGENT, ended=status)
        [child] = import_items(run.project, [head], by=f"run:{run.pk}").runs
        call = AgentRunToolCall.objects.filter(run=run, child_run=child).first()
        if call is not None:
            self._append(run, completed_event(child, call))

    def _end_if_reported(self, run: AgentRun, line: Mapping[str, Any]) -> None:
        """End a background sub-agent whose end a `system` line reports. Other `system` lines are ignored."""
        call_id, status = line.get("tool_use_id"), _TASK_ENDS.get(str(line.get("status")))
        if isinstance(call_id, str) and status is not None:
            self._end(run, run_ref(run.pk, call_id), status)

    def _append(self, run: AgentRun, entry: Entry) -> None:
        log.append(run.pk, [entry], source=Source.WORKER, epoch=self._epoch)


def _head(run: AgentRun, call: AgentRunToolCall, first: ConversationLine) -> ImportedRun:
    """Return the head of a sub-agent's run, from the call that spawned it and from its first line."""
    arguments = call.input if isinstance(call.input, dict) else {}
    return ImportedRun(
        run_ref=run_ref(run.pk, call.call_id),
        agent=identifier_or_none(arguments.get("subagent_type")) or AGENT,
        model=first.model,
        title=str(arguments.get("description") or "")[:MAX_TITLE],
        session_id=run.session_id,
        created_at=first.at,
        parent_ref=str(call.run_id),
        parent_call_id=call.call_id,
    )


def _unfinished(lines: Sequence[ConversationLine]) -> list[ConversationLine]:
    """Return the lines that a later line may continue: of the last answer, and of calls without a result."""
    ended = {block["tool_use_id"] for line in lines for block in line.results}
    last = next((line.answer_id for line in reversed(lines) if line.kind == "assistant"), "")
    return [
        line
        for line in lines
        if line.kind == "assistant"
        and (line.answer_id == last or any(call_id not in ended for call_id, _ in line.call_names))
    ]
