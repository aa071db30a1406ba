"""One model turn: call the model, retry, and commit the answer with its planned calls before any of them runs.

No transaction is open during the call.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Any, cast

from django.conf import settings
from pydantic_ai.messages import ModelResponse

from agentops.base import database_clock
from runs import chaos
from runs.agents.policies import Trigger, kind_of, rule_for
from runs.conversation import call_ids, repeats, tool_starts, transcript, turn_usage, writes
from runs.conversation.writes import Commit
from runs.database_errors import STORAGE_ERRORS
from runs.engine.drive import Drive, FailedAttempts
from runs.engine.notes import note, note_failure
from runs.engine.results import AnswerCommitted, NoAnswer
from runs.engine.safe_commit import commit_safely
from runs.engine.sessions import held_session, session_calls, session_usage
from runs.engine.shutdown import ShutdownDue, StopPending
from runs.engine.turns import open_call, recorded_calls
from runs.engine.turns.model_stream import IDLE_S, Deltas, ModelCallState, TextChunk, read
from runs.lifecycle import inbox
from runs.lifecycle.error_contexts import LLM_STREAM
from runs.models import AgentRunMessage, AgentRunToolCall, RunCommand, RunError, TurnUsage
from runs.providers import retries
from runs.providers.base import FollowUp, ModelCall
from runs.providers.retries import Failure, RetryDelay
from timeline.errors import LeaseLost
from timeline.events.llm import LlmTurnAbandoned, LlmTurnEnd, LlmTurnStart
from timeline.events.notice import ContextTrimmed
from timeline.events.retry import RetryScheduled
from timeline.log import Entry


@dataclass(frozen=True)
class _FailedAttempt:
    """A failed attempt, and the event that closes it."""

    failure: Failure
    abandoned: Entry


def turn_start(drive: Drive, attempt: int) -> Entry:
    """Return the event of the start of the next model call. Attempts count from 0."""
    step = drive.run.step_count + 1
    payload = LlmTurnStart(attempt=attempt or None, model=drive.config["model"], call=step)
    return Entry(payload, step=step, clean=True)


def ask(drive: Drive, *, started: bool) -> AnswerCommitted | NoAnswer:
    """Call the model until it answers or the attempts are used up, and commit the answer.

    `started` says whether the start of the first attempt is committed already. Raises `StopPending` and `ShutdownDue`
    after closing the attempt in the log.
    """
    failed = drive.failed_attempts
    while True:
        attempt = failed.times
        if not started:
            chaos.point("model.before_start")
            note(drive.lease, turn_start(drive, attempt))
        started = False
        answer = _attempt(drive, attempt)
        if isinstance(answer, AnswerCommitted):
            return answer
        failed = FailedAttempts(attempt + 1, failed.first_at or database_clock.now())
        pause = _pause(drive, attempt, failed, answer.failure)
        _note_failed(drive, failed, answer.failure, answer.abandoned, pause)
        if pause is None:
            return NoAnswer(answer.failure, until=None)
        if pause.outage or pause.delay_s > retries.HOLD_WORKER_S:
            return NoAnswer(answer.failure, until=database_clock.now() + timedelta(seconds=pause.delay_s))
        _sleep(drive, pause.delay_s)


def _attempt(drive: Drive, attempt: int) -> AnswerCommitted | _FailedAttempt:
    """Call the model once, and commit the answer."""
    chaos.point("model.before_call")
    state, began = None, time.monotonic()
    try:
        drive.check()
        state = ModelCallState()
        response, blocks = _answer(drive, state)
    except LeaseLost:
        raise
    except ShutdownDue:
        note(drive.lease, _abandoned_event(drive, attempt, "worker_ending", state))
        raise
    except StopPending:
        note(drive.lease, _abandoned_event(drive, attempt, "stopped", state))
        raise
    except Exception as error:  # any exception of a provider's library; classify() names it
        if drive.session is not None and isinstance(error, STORAGE_ERRORS):
            raise  # raised by a query for a session: the model has not failed
        failure = retries.classify(error, database_clock.now(), drive.model, server=drive.model_server)
        return _FailedAttempt(failure, _abandoned_event(drive, attempt, failure.error_type, state))
    chaos.point("model.answered")
    return _commit(drive, response, blocks, attempt=attempt, duration_ms=round((time.monotonic() - began) * 1000))


def _answer(drive: Drive, state: ModelCallState) -> tuple[ModelResponse, list[Entry]]:
    """Return the whole answer, with the events for the text that was not logged during the stream."""
    call = ModelCall(
        model=drive.config["model"],
        node=drive.node,
        number=drive.call_number(drive.run.step_count + 1),
        history=drive.context.fit(drive.conversation.history),
        tools=drive.toolset.definitions(),
        settings=drive.settings,
        output_schema=drive.output_schema,
    )
    chunks: SimpleQueue[TextChunk | None] = SimpleQueue()
    idle_s = held_session.IDLE_S if drive.session is not None else IDLE_S
    future = drive.loop.submit(read(drive.provider.open(call), chunks.put, idle_s, state))
    future.add_done_callback(lambda _: chunks.put(None))
    deltas = Deltas(step=drive.run.step_count + 1)
    try:
        _follow(drive, chunks, deltas, future)
        return future.result(), deltas.rest()
    except LeaseLost:
        raise
    except Exception:
        # The partial text stays in the log; the caller closes the attempt.
        if deltas.is_ready:
            note(drive.lease, *deltas.take())
        raise
    finally:
        future.cancel()


def _follow(drive: Drive, chunks: SimpleQueue[TextChunk | None], deltas: Deltas, future: Future[ModelResponse]) -> None:
    """Log the text of an answer while it arrives."""
    while True:
        session_calls.attend(drive)
        try:
            chunk = chunks.get(timeout=deltas.wait_s())
        except Empty:
            drive.check_for_stop()
        else:
            if chunk is None:
                return
            deltas.add(chunk)
        # Text that is ready at the end of the answer is committed with it.
        if deltas.due() and not future.done():
            drive.check_for_stop()
            note(drive.lease, *deltas.take())
            chaos.point("model.streaming")


def _pause(drive: Drive, attempt: int, failed: FailedAttempts, failure: Failure) -> RetryDelay | None:
    """Return the pause before the next attempt; None for no further attempt.

    After the immediate attempts a policy decides. Without a policy for this error, the run waits for the end of the
    outage.
    """
    jitter = random.random()  # noqa: S311 - spreads load, guards nothing
    pause = retries.next_attempt(attempt, failure, drive.limits, jitter)
    if pause is not None or rule_for(drive.policies, Trigger.ON_ERROR, kind_of(failure.error_type)) is not None:
        return pause
    outage_s = settings.AGENTOPS_OUTAGE_S
    left_s = retries.outage_left_s(failed.first_at, database_clock.now(), outage_s)
    return retries.outage_pause(attempt, failure, drive.limits, jitter, left_s=left_s, outage_s=outage_s)


def _note_failed(
    drive: Drive, failed: FailedAttempts, failure: Failure, abandoned: Entry, pause: RetryDelay | None
) -> None:
    """Save the last failed attempt, with its events and the event of the next attempt."""
    step, attempt = drive.run.step_count + 1, failed.times - 1
    entries = [abandoned]
    if pause is not None:
        entries.append(Entry(_retry_payload(drive, failed, failure, pause), step=step))
    row = RunError(
        run=drive.run, step_number=step, context=LLM_STREAM, error_type=failure.error_type[:64],
        message=failure.message, details=failure.details, attempt=attempt, created_at=database_clock.now(),
    )  # fmt: skip
    note_failure(drive.lease, row, *entries)


def _retry_payload(drive: Drive, failed: FailedAttempts, failure: Failure, pause: RetryDelay) -> RetryScheduled:
    """Return the payload about the next attempt: its number, or the end of the outage period."""
    until = None
    if pause.outage and failed.first_at is not None:
        until = failed.first_at + timedelta(seconds=settings.AGENTOPS_OUTAGE_S)
    return RetryScheduled(
        what="llm", attempt=failed.times, max_attempts=None if pause.outage else drive.limits.max_retries + 1,
        delay_ms=round(pause.delay_s * 1000), error_type=failure.error_type, error=failure.message[:500],
        details=failure.details[:1000] or None, until=until,
    )  # fmt: skip


def _sleep(drive: Drive, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        if drive.shutdown.requested.wait(min(left_s, 0.25)):
            raise ShutdownDue
        drive.check_for_stop()


def _abandoned_event(drive: Drive, attempt: int, reason: str, state: ModelCallState | None) -> Entry:
    """Return the event of a call without an answer, with the known usage.

    `state` is None if the model was not called.
    """
    step = drive.run.step_count + 1
    if state is None or state.refused:
        return Entry(LlmTurnAbandoned(attempt=attempt or None, reason=reason), step=step)
    answer, duration_ms = state.usage(), round((time.monotonic() - state.began) * 1000)
    if answer is None:
        unknown = LlmTurnAbandoned(attempt=attempt or None, reason=reason, usage="unknown", duration_ms=duration_ms)
        return Entry(unknown, step=step)
    used = turn_usage.usage_of(drive.run.pk, step, attempt, answer, duration_ms, prices=drive.prices, model=drive.model)
    drive.spending.add(used)
    return Entry(LlmTurnAbandoned(reason=reason, usage="partial", **_usage_fields(used)), step=step, clean=True)


def _commit(
    drive: Drive, response: ModelResponse, blocks: list[Entry], *, attempt: int, duration_ms: int
) -> AnswerCommitted:
    """Commit the answer, its calls, and the start of the first call, in one transaction."""
    run, step = drive.run, drive.run.step_count + 1
    follow_up = drive.provider.follow_up(drive.config["model"], drive.node, drive.call_number(step))
    if follow_up.recorded is not None:
        blocks, duration_ms = recorded_calls.apply(drive, follow_up.recorded, blocks), follow_up.recorded.duration_ms
    # A program runs its calls itself, so each call needs a row.
    dropped_count = 0 if drive.session is not None else call_ids.drop_excess(response)
    call_ids.make_usable(response)
    response.usage = turn_usage.plausible(response.usage)
    row, message = transcript.new_row(
        run.pk, drive.conversation.position + 1, response,
        role=AgentRunMessage.Role.ASSISTANT, step=step, epoch=drive.epoch,
    )  # fmt: skip
    # The message as stored, without characters that no column accepts.
    response = cast("ModelResponse", message)
    calls = _planned_calls(drive, row, response)
    usage = turn_usage.usage_of(run.pk, step, attempt, response, duration_ms, prices=drive.prices, model=drive.model)
    further = drive.session.settle_cost(usage, response, drive.prices) if drive.session is not None else []
    turn_end = Entry(_turn_end(usage, response, len(calls)), step=step, ref_id=row.id, clean=True)
    entries = [
        *blocks,
        transcript.message_event(row),
        turn_end,
        *open_call.dropped_calls_event(dropped_count, step),
        *_trimming_events(drive),
        *drive.spending.count(usage, step),
        *session_usage.events(drive, further, step),
    ]
    commands = _recorded_turns(drive, step, follow_up)
    entries += [inbox.received_event(command) for command in commands]
    first = _first_call(drive, response, calls)
    if first is not None:
        chaos.point("tool.before_start")
        entries.append(tool_starts.start_call(first, attempt=0))
    turn = Commit(
        run_id=run.pk, epoch=drive.epoch, events=entries, messages=[row], usage=usage, calls=calls, commands=commands
    )
    commit_safely(
        partial(session_usage.write, turn, further) if further else partial(writes.write, turn),
        is_committed=lambda: AgentRunMessage.objects.filter(pk=row.pk).exists(),
        read_result=lambda: False,
        lease=drive.lease,
        proves_lease=True,
    )
    chaos.point("turn.commit_sent")
    return AnswerCommitted(row, message, calls, is_first_started=first is not None)


def _recorded_turns(drive: Drive, step: int, follow_up: FollowUp) -> list[RunCommand]:
    """Return the user message that the recording has for this run after this answer, as a command."""
    if (
        follow_up.user is None
        or drive.is_last_call_of_visit(follow_up)
        or inbox.has_recorded_turn(drive.run.pk, number=step)
    ):
        return []
    return [inbox.recorded_turn(drive.run.pk, follow_up.user, number=step)]


def _trimming_events(drive: Drive) -> list[Entry]:
    """Return the event about trimmed context. It is committed with the answer, so a repeated request logs it once."""
    turn_count = drive.context.newly_omitted
    trimmed = ContextTrimmed(turns=turn_count, tokens=drive.context.tokens)
    return [Entry(trimmed, step=drive.run.step_count + 1, clean=True)] if turn_count else []


def _first_call(drive: Drive, response: ModelResponse, calls: list[AgentRunToolCall]) -> AgentRunToolCall | None:
    """Return the call that may be marked running in the same commit; None without one.

    Its tool must exist and must neither ask a question nor spawn runs. No hook, approval or repeat guard may block it.
    Agents with the rollback policy start no call here: a turn can only be rolled back while none of its calls has
    started.
    """
    tool = drive.toolset.get(calls[0].tool_name) if calls else None
    if drive.has_rollback_policy or tool is None or tool.asks or tool.spawns or drive.stands_before(tool):
        return None
    newest_first = chain([response], reversed(drive.conversation.history))
    return calls[0] if repeats.streak(newest_first, calls[0].call_id) < repeats.STOP_AT else None


def _planned_calls(drive: Drive, row: AgentRunMessage, response: ModelResponse) -> list[AgentRunToolCall]:
    """Return the rows of the calls of an answer."""
    calls: list[AgentRunToolCall] = []
    for part in response.tool_calls:
        tool = drive.toolset.get(part.tool_name)
        call = tool_starts.planned_call(row, part, effect=tool.effect if tool else None)
        calls.append(call)
    return calls


def _turn_end(usage: TurnUsage, response: ModelResponse, calls: int) -> LlmTurnEnd:
    return LlmTurnEnd(finish_reason=response.finish_reason, tool_calls=calls or None, **_usage_fields(usage))


def _usage_fields(usage: TurnUsage) -> dict[str, Any]:
    """Return the usage as fields of an event."""
    return {
        "attempt": usage.attempt or None,
        "model": usage.model or None,
        "tier": usage.tier or None,
        **{name: getattr(usage, name) or None for name in writes.TOKENS},
        "cost_usd": str(usage.cost_usd) if usage.cost_usd is not None else None,
        "cost_source": usage.cost_source if usage.cost_source in turn_usage.SOURCES_IN_EVENTS else None,
        "duration_ms": usage.duration_ms,
    }
