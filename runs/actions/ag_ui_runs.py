"""Requests of AG-UI clients: each starts a run, or continues that of its thread.

A thread is a conversation in the client's words, and a chain of runs here. The site's record is the conversation, so
only the new message of a request counts, not the history that clients send with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction

from agentops.projects.access import Principal
from agentops.projects.models import Project
from runs.actions import run_actions
from runs.errors import MessageEmpty, NoCheckpoint, RunRefusal
from runs.lifecycle import questions
from runs.models import Agent, AgentRun, AgentRunMessage, AgUiRun
from runs.statuses import RunStatus
from timeline import log
from timeline.events import EventType
from timeline.models import Log


class ThreadBusy(RunRefusal):
    """The run of the thread is still in progress."""

    code = "thread_busy"


class DecisionRequired(RunRefusal):
    """The run waits for a decision that a message cannot give."""

    code = "decision_required"


class InterruptNotOpen(RunRefusal):
    """The client answers an interrupt that the thread's run does not, or no longer, have."""

    code = "interrupt_not_open"


@dataclass(frozen=True)
class InterruptAnswer:
    """The client's answer to an interrupt."""

    interrupt_id: str
    is_cancelled: bool
    text: str | None


@dataclass(frozen=True)
class AgUiRequest:
    """What a client sends."""

    thread_id: str
    run_id: str
    #: The new user message, and the client's ID of it.
    message: str | None = None
    message_id: str = ""
    answer: InterruptAnswer | None = None


def start(actor: Principal, project: Project, agent: Agent, request: AgUiRequest) -> AgUiRun:
    """Start or continue the run of a thread. A repeated request does nothing and has the same result.

    Raises `ThreadBusy`, `DecisionRequired`, `InterruptNotOpen`, `MessageEmpty`, and what the actions raise.
    """
    with transaction.atomic():
        # One request at a time, so that two of a thread do not both start a run.
        Agent.objects.select_for_update(no_key=True).get(pk=agent.pk)
        requests = AgUiRun.objects.filter(agent=agent, thread_id=request.thread_id)
        earlier = requests.filter(client_run_id=request.run_id).first()
        if earlier is not None:
            return earlier
        newest = requests.select_related("run").order_by("-pk").first()
        before = None if newest is None else _successor(newest.run)
        if request.answer is not None:
            _require_open(before, request.answer)
        last_seq = 0 if before is None else Log.objects.get(pk=before.pk).last_seq
        run = _act(actor, project, agent, before, request)
        is_same = before is not None and run.pk == before.pk
        message = None if is_same or request.message is None else _last_message(run)
        return AgUiRun.objects.create(
            agent=agent,
            run=run,
            thread_id=request.thread_id,
            client_run_id=request.run_id,
            after_seq=last_seq if is_same else 0,
            message=message,
            client_message_id=request.message_id if message else "",
        )


def _successor(run: AgentRun) -> AgentRun:
    """Return the run that continues this one now."""
    while (following := AgentRun.objects.filter(resumed_from=run).first()) is not None:
        run = following
    return run


def _require_open(run: AgentRun | None, answer: InterruptAnswer) -> None:
    """Raise `InterruptNotOpen` unless the run has ended its last AG-UI run with this interrupt."""
    if run is not None and run.state in (RunStatus.WAITING, RunStatus.PAUSED):
        kinds = [EventType.RUN_WAITING, EventType.RUN_PAUSED]
        last = log.events_of(run.pk).filter(type__in=kinds).order_by("-seq").first()
        if last is not None and answer.interrupt_id == f"{run.pk}.{last.seq}":
            return
    raise InterruptNotOpen("the thread does not wait for an answer to this interrupt")


def _act(actor: Principal, project: Project, agent: Agent, before: AgentRun | None, request: AgUiRequest) -> AgentRun:
    """Carry out the action that continues a thread, and return the run whose events answer the request."""
    if before is None:
        return run_actions.create(actor, project, agent, _required(request.message))
    before.project = project
    if request.answer is not None and request.answer.is_cancelled:
        return run_actions.stop(actor, before).run
    text = request.answer.text if request.answer is not None else None
    message = request.message if request.message is not None else text
    if before.state is RunStatus.PAUSED:
        return run_actions.resume(actor, before, message=message).run
    if not before.state.terminal and not questions.is_waiting_for_answer(before):
        raise _busy(before)
    if not before.state.terminal:
        return run_actions.reply(actor, before, _required(message)).run
    return _fork(actor, before, _required(message)) or run_actions.create(actor, project, agent, _required(message))


def _required(message: str | None) -> str:
    if message is None:
        raise MessageEmpty("the last message must be a new user message", pointer="/messages")
    return message


def _busy(run: AgentRun) -> RunRefusal:
    facts = {"run_id": str(run.pk), "run_status": run.status}
    if run.status_reason in ("approval", "unknown_tool"):
        return DecisionRequired("the run waits for a decision about a tool call: decide on its page", **facts)
    text = "the run of this thread is still in progress: send the runId of its request again to follow it"
    return ThreadBusy(text, **facts)


def _fork(actor: Principal, run: AgentRun, message: str) -> AgentRun | None:
    """Continue an ended run after its last finished step; None if it has finished none."""
    try:
        return run_actions.fork(actor, run, step=run.step_count, message=message)
    except NoCheckpoint:
        return None


def _last_message(run: AgentRun) -> AgentRunMessage | None:
    """Return the user message with which a new run begins."""
    messages = AgentRunMessage.objects.filter(run=run, role=AgentRunMessage.Role.USER)
    return messages.order_by("-position").first()
