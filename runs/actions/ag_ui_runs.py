"""Requests of AG-UI clients: each starts a run, or continues the run of its thread.

A thread of the client is a chain of runs here. Only the new messages of a request are used, not the history that
clients send with it: the stored conversation counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from agentops.accounts.access import Principal
from agentops.accounts.models import Project
from agentops.accounts.names import UUID_PATTERN
from agentops.base.refusals import Conflict, Invalid, Refusal
from runs.actions import ag_ui_answers, run_actions
from runs.actions.ag_ui_answers import InterruptAnswer
from runs.conversation import ancestry
from runs.errors import MessageEmpty
from runs.lifecycle import questions
from runs.lifecycle.creation import FrontEndTools, Media, UserTurn, turn_of
from runs.models import Agent, AgentRun, AgentRunMessage, AgUiRun
from runs.providers import loading
from runs.statuses import RunStatus
from timeline.models import Log

#: The results of front-end calls that were not run, and of calls that ran without a result.
NOT_RUN = "The front end has not run this tool. The user has sent another message instead."
NO_OUTPUT = "The tool has run, without output."


@dataclass(frozen=True)
class ClientMessage:
    """A user message, with the ID that the client gave it."""

    id: str
    text: str
    #: Images and documents that follow the text.
    media: Sequence[Media] = ()


@dataclass(frozen=True)
class AgUiRequest:
    """The content of a client's request."""

    thread_id: str
    run_id: str
    #: The user messages at the end of the client's conversation. Messages after the last known one are new.
    messages: Sequence[ClientMessage] = ()
    #: Text to add to the new message.
    context: str = ""
    #: Validated tools that the front end runs.
    tools: FrontEndTools = ()
    #: Results of tool calls, by call ID. They may include the result that the run waits for.
    tool_results: Mapping[str, str] = field(default_factory=dict)
    answer: InterruptAnswer | None = None


@dataclass(frozen=True)
class _Turn:
    """The new content of a request: new messages as one text, and an answer to the open interrupt."""

    message: str | None
    #: The client's ID of the last new message; empty without one.
    message_id: str
    media: Sequence[Media] = ()
    answer: InterruptAnswer | None = None
    #: If set, nothing is done, and the client gets the events after this sequence number.
    follows_after: int | None = None
    tools: FrontEndTools = ()
    tool_results: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_new(self) -> bool:
        """Whether the request has a new message."""
        return self.message is not None or bool(self.media)

    @property
    def text(self) -> str | None:
        """The answer and the messages as one text; None if both are missing."""
        answer = None if self.answer is None else self.answer.text
        texts = [text for text in (answer, self.message) if text is not None]
        return "\n\n".join(texts) if texts else None


def start(actor: Principal, project: Project, agent: Agent, request: AgUiRequest) -> AgUiRun:
    """Start or continue the run of a thread. A repeated request does nothing and returns the same result.

    Raises `MessageEmpty`, `Conflict` with the code `thread_busy`, `decision_required` or `interrupt_not_open`, and the
    errors of the actions.
    """
    return loading.repeating(partial(_start, actor, project, agent, request))


def _start(actor: Principal, project: Project, agent: Agent, request: AgUiRequest) -> AgUiRun:
    """Lock the newest run of the thread, and act on it. Repeats this if another request has added a newer run."""
    while True:
        with transaction.atomic():
            newest = _newest_run(agent, request.thread_id)
            _lock(agent, newest)
            before = _newest_run(agent, request.thread_id)
            if before == newest:
                return _start_or_repeat(actor, project, agent, before, request)


def _newest_run(agent: Agent, thread_id: str) -> AgentRun | None:
    """Return the newest run of a thread, also if a person has resumed it; None for a new thread."""
    newest = AgUiRun.objects.filter(agent=agent, thread_id=thread_id).select_related("run").order_by("-pk").first()
    if newest is None:
        return None
    run = newest.run
    while (successor := AgentRun.objects.filter(resumed_from=run).first()) is not None:
        run = successor
    return run


def _lock(agent: Agent, run: AgentRun | None) -> None:
    """Lock the run and the agent of a thread, so that of two requests only one starts a run.

    Locks them in the same order as a claim does, to prevent a deadlock.
    """
    if run is not None:
        AgentRun.objects.select_for_update(no_key=True, of=("self",)).filter(pk=run.pk).first()
    Agent.objects.select_for_update(no_key=True).get(pk=agent.pk)


def _start_or_repeat(
    actor: Principal, project: Project, agent: Agent, before: AgentRun | None, request: AgUiRequest
) -> AgUiRun:
    """Start or continue the run of a thread whose newest run is `before`, unless an earlier request was the same."""
    requests = AgUiRun.objects.filter(agent=agent, thread_id=request.thread_id)
    earlier = requests.filter(client_run_id=request.run_id).first()
    if earlier is not None:
        return earlier
    turn = _turn(before, requests, request)
    last_seq = 0 if before is None else Log.objects.get(pk=before.pk).last_seq
    run = _act(actor, project, agent, before, turn)
    is_same = before is not None and run.pk == before.pk
    return AgUiRun.objects.create(
        agent=agent,
        run=run,
        thread_id=request.thread_id,
        client_run_id=request.run_id,
        after_seq=(last_seq if turn.follows_after is None else turn.follows_after) if is_same else 0,
        message=None if is_same or turn.message is None else _last_message(run),
        client_message_id=turn.message_id,
    )


def _turn(run: AgentRun | None, requests: QuerySet[AgUiRun], request: AgUiRequest) -> _Turn:
    """Return the new content of a request. Raises `Conflict` if its answer would be lost: see `settled_interrupt`."""
    ids = [message.id for message in request.messages]
    known = set(requests.filter(client_message_id__in=ids).values_list("client_message_id", flat=True))
    known |= _stored_ids(run, ids)
    # Messages before a known one are not new: they were sent together with it.
    first_new = max((index + 1 for index, each in enumerate(ids) if each in known), default=0)
    new = request.messages[first_new:]
    text = "\n\n".join(filter(None, (message.text for message in new))) + request.context if new else ""
    media = [part for message in new for part in message.media]
    turn = _Turn(
        text if text or (new and not media) else None,
        new[-1].id if new else "",
        media,
        request.answer,
        tools=request.tools,
        tool_results=request.tool_results,
    )
    if turn.answer is None or turn.answer.interrupt_id == ag_ui_answers.open_interrupt(run):
        return turn
    settled = ag_ui_answers.settled_interrupt(run, turn.answer)
    return replace(turn, answer=None, follows_after=None if turn.is_new else settled)


def _stored_ids(run: AgentRun | None, ids: Sequence[str]) -> set[str]:
    """Return the IDs that belong to stored messages. Clients have them from a snapshot of the conversation."""
    uuids = [each for each in ids if re.fullmatch(UUID_PATTERN, each)]
    if run is None or not uuids:
        return set()
    rows = AgentRunMessage.objects.filter(pk__in=uuids, run__project=run.project_id)
    return {str(pk) for pk in rows.values_list("pk", flat=True)}


def _act(actor: Principal, project: Project, agent: Agent, before: AgentRun | None, turn: _Turn) -> AgentRun:
    """Carry out the action that continues a thread, and return the run whose events answer the request."""
    if before is None:
        return run_actions.create(actor, project, agent, _content(turn), front_end_tools=turn.tools)
    before.project = project
    if turn.follows_after is not None:
        return before
    if turn.media and not (before.state.terminal or before.state is RunStatus.PAUSED):
        raise Invalid(
            "a run that is in progress takes texts only: send media when it has ended or is paused",
            code="unsupported_content",
        )
    if turn.answer is not None and ag_ui_answers.is_decision(before):
        run = ag_ui_answers.decide(actor, before, turn.answer)
        return run if turn.message is None else run_actions.send(actor, run, turn.message).run
    if turn.answer is not None and turn.answer.is_cancelled:
        return run_actions.stop(actor, before).run
    if before.state is RunStatus.PAUSED:
        return run_actions.resume(actor, before, message=turn.text, media=turn.media, front_end_tools=turn.tools).run
    if questions.is_waiting_for_answer(before):
        return _answer(actor, before, turn)
    if not before.state.terminal:
        raise _busy(before)
    return _begin_again(actor, project, agent, before, turn)


def _answer(actor: Principal, run: AgentRun, turn: _Turn) -> AgentRun:
    """Answer the question that a run waits for, or send the result of a front-end tool."""
    question = questions.open_question(run)
    if question is None or not question.is_for_front_end:
        return run_actions.reply(actor, run, _required(turn.text)).run
    result = turn.tool_results.get(str(question.call.pk))
    if result is None and turn.message is None:
        raise Conflict(
            "the run waits for the result of a tool of the front end",
            code="tool_result_required",
            call_id=str(question.call.pk),
        )
    # An output of only spaces is replaced, because a message must not be empty.
    text = NOT_RUN if result is None else result if result.strip() else NO_OUTPUT
    run = run_actions.reply(actor, run, text).run
    return run if turn.message is None else run_actions.send(actor, run, turn.message).run


def _begin_again(actor: Principal, project: Project, agent: Agent, before: AgentRun, turn: _Turn) -> AgentRun:
    """Continue an ended run after its last finished step, or as a new run if it has finished no step."""
    content = _content(turn)
    # Not `step_count`, which includes a step that was stopped during its calls.
    if steps := ancestry.steps_of(before, 1):
        return run_actions.fork(
            actor, before, step=steps[0], message=turn.message, media=turn.media, front_end_tools=turn.tools
        )
    # A run without a finished step can only start again from its prompt.
    if isinstance(before.prompt, str):
        content = turn_of("\n\n".join(filter(None, [before.prompt, turn.message])), turn.media)
    return run_actions.create(actor, project, agent, content, front_end_tools=turn.tools)


def _content(turn: _Turn) -> UserTurn:
    return turn_of(turn.message, turn.media) if turn.media else _required(turn.message)


def _required(message: str | None) -> str:
    if message is None:
        raise MessageEmpty("the last message must be a new user message", pointer="/messages")
    return message


def _busy(run: AgentRun) -> Refusal:
    """Return the error for a message to a run in progress."""
    facts: dict[str, Any] = {"run_id": str(run.pk), "run_status": run.status}
    if ag_ui_answers.is_decision(run):
        return Conflict(
            "the run waits for a decision about a tool call: answer its interrupt", code="decision_required", **facts
        )
    text = "the run of this thread is still in progress: send the runId of its request again to follow it"
    return Conflict(text, code="thread_busy", **facts)


def _last_message(run: AgentRun) -> AgentRunMessage | None:
    """Return the last user message at the start of a new run; None without one."""
    messages = AgentRunMessage.objects.filter(run=run, role=AgentRunMessage.Role.USER)
    return messages.order_by("-position").first()
