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
from typing import cast

from django.conf import settings
from pydantic_ai.messages import ModelResponse

from agentops.base import database_clock
from runs import chaos
from runs.agents.policies import OnCrash, Trigger, kind_of, rule_for
from runs.conversation import call_ids, repeats, tool_starts, transcript, turn_usage, writes
from runs.conversation.writes import Commit
from runs.database_errors import STORAGE_ERRORS
from runs.engine.drive import Drive, FailedAttempts
from runs.engine.results import AnswerCommitted, ModelFailed, ShutdownDue, StopPending
from runs.engine.safe_commit import commit_safely, note, note_failure
from runs.engine.sessions import held_session, session_calls
from runs.engine.turns import open_call, recorded_calls
from runs.engine.turns.model_stream import IDLE_S, Deltas, ModelCallState, TextChunk, read
from runs.lifecycle import inbox
from runs.lifecycle.causes import LLM_STREAM
from runs.models import AgentRunMessage, AgentRunToolCall, RunCommand, RunError, TurnUsage
from runs.providers import finish_reasons, retries
from runs.providers.base import FollowUp, ModelCall
from runs.providers.messages import sendable
from runs.providers.retries import Failure, RetryDelay
from timeline.events.llm import LlmTurnAbandoned, LlmTurnEnd, LlmTurnStart
from timeline.events.notice import ContextTrimmed, RetryScheduled
from timeline.log import Entry
from timeline.models import LeaseLost


@dataclass(frozen=True)
class _FailedAttempt:
    """A failed attempt, and the event that closes it in the log."""

    failure: Failure
    abandoned_event: Entry


def turn_start(drive: Drive, attempt: int) -> Entry:
    """Return the event of the start of the next step's model call. Attempts count from 0."""
    step = drive.run.step_count + 1
    payload = LlmTurnStart(attempt=attempt or None, model=drive.config["model"], call=step)
    return Entry(payload, step=step, clean=True)


def ask(drive: Drive, *, started: bool) -> AnswerCommitted | ModelFailed:
    """Call the model until it answers or the attempts are used up, and commit the answer.

    `started`: the start of the first attempt is committed already. Raises `LeaseLost`, and `StopPending` or
    `ShutdownDue` if interrupted, after closing the attempt in the log.
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
        _note_failed(drive, failed, answer, pause)
        if pause is None:
            return ModelFailed(answer.failure, until=None)
        if pause.outage or pause.delay_s > retries.HOLD_WORKER_S:
            return ModelFailed(answer.failure, until=database_clock.now() + timedelta(seconds=pause.delay_s))
        _sleep(drive, pause.delay_s)


def _attempt(drive: Drive, attempt: int) -> AnswerCommitted | _FailedAttempt:
    """Call the model once. Commit the answer, or return why there is none."""
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
            raise  # a query for the session failed, not the model
        failure = retries.classify(error, database_clock.now(), drive.model, server=drive.model_server)
        return _FailedAttempt(failure, _abandoned_event(drive, attempt, failure.error_type, state))
    chaos.point("model.answered")
    return _commit(drive, response, blocks, attempt=attempt, duration_ms=round((time.monotonic() - began) * 1000))


def _answer(drive: Drive, state: ModelCallState) -> tuple[ModelResponse, list[Entry]]:
    """Return the whole answer, and the events for the text that was not logged during the stream."""
    history = drive.context.fit(drive.conversation.history)
    call = ModelCall(
        model=drive.config["model"],
        node=drive.node,
        number=drive.call_number(drive.run.step_count + 1),
        # The program of a session has its own transcript: the history only says which messages it has received.
        history=history if drive.session is not None else sendable(history),
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
        # Log the text so far; the caller closes the attempt.
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
        # At the end of the answer, the remaining text is committed with the answer.
        if deltas.due() and not future.done():
            drive.check_for_stop()
            note(drive.lease, *deltas.take())
            chaos.point("model.streaming")


def _pause(drive: Drive, attempt: int, failed: FailedAttempts, failure: Failure) -> RetryDelay | None:
    """Return the pause before the next attempt; None for no further attempt.

    After the agent's `max_retries`, a policy for this error decides. Without one, further attempts follow until the
    outage has lasted `AGENTOPS_OUTAGE_S` seconds.
    """
    jitter = random.random()  # noqa: S311 - spreads load, guards nothing
    pause = retries.next_attempt(attempt, failure, drive.retry_limits, jitter)
    if pause is not None or rule_for(drive.policies, Trigger.ON_ERROR, kind_of(failure.error_type)) is not None:
        return pause
    outage_s = settings.AGENTOPS_OUTAGE_S
    left_s = retries.outage_left_s(failed.first_at, database_clock.now(), outage_s)
    return retries.outage_pause(attempt, failure, drive.retry_limits, jitter, left_s=left_s, outage_s=outage_s)


def _note_failed(drive: Drive, failed: FailedAttempts, last: _FailedAttempt, pause: RetryDelay | None) -> None:
    """Save the last failed attempt, with the event that closes it and the event of the next attempt."""
    step, failure, entries = drive.run.step_count + 1, last.failure, [last.abandoned_event]
    if pause is not None:
        entries.append(Entry(_retry_payload(drive, failed, failure, pause), step=step))
    row = RunError(
        run=drive.run,
        step_number=step,
        context=LLM_STREAM,
        error_type=failure.error_type[:64],
        message=failure.message,
        details=failure.details,
        attempt=failed.times - 1,
        created_at=database_clock.now(),
    )
    note_failure(drive.lease, row, *entries)


def _retry_payload(drive: Drive, failed: FailedAttempts, failure: Failure, pause: RetryDelay) -> RetryScheduled:
    """Return the payload about the next attempt: its number, or the end of the outage period."""
    until = None
    if pause.outage and failed.first_at is not None:
        until = failed.first_at + timedelta(seconds=settings.AGENTOPS_OUTAGE_S)
    return RetryScheduled(
        what="llm",
        attempt=failed.times,
        max_attempts=None if pause.outage else drive.retry_limits.max_retries + 1,
        delay_ms=round(pause.delay_s * 1000),
        error_type=failure.error_type,
        error=failure.message[:500],
        details=failure.details[:1000] or None,
        until=until,
    )


def _sleep(drive: Drive, seconds: float) -> None:
    """Wait before the next attempt. Raises `ShutdownDue` once a shutdown is requested, and `StopPending`."""
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        if drive.shutdown.requested.wait(min(left_s, 0.25)):
            raise ShutdownDue
        drive.check_for_stop()


def _abandoned_event(drive: Drive, attempt: int, reason: str, state: ModelCallState | None) -> Entry:
    """Return the event of a call without an answer, with the usage as far as it is known, and add it to the budgets.

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
    return Entry(
        LlmTurnAbandoned(reason=reason, usage="partial", **turn_usage.event_fields(used)), step=step, clean=True
    )


def _commit(
    drive: Drive, response: ModelResponse, blocks: list[Entry], *, attempt: int, duration_ms: int
) -> AnswerCommitted:
    """Commit the answer, its calls, and the start of the first call, in one transaction."""
    run, step = drive.run, drive.run.step_count + 1
    follow_up = drive.follow_up(step)
    if follow_up.recorded is not None:
        blocks, duration_ms = recorded_calls.apply(drive, follow_up.recorded, blocks), follow_up.recorded.duration_ms
    dropped_count = _make_storable(drive, response)
    row, message = transcript.new_row(
        run.pk,
        drive.conversation.position + 1,
        response,
        role=AgentRunMessage.Role.ASSISTANT,
        step=step,
        epoch=drive.epoch,
    )
    # From here on the message as stored, without characters that columns do not accept.
    response = cast("ModelResponse", message)
    calls = _planned_calls(drive, row, response)
    usage = turn_usage.usage_of(run.pk, step, attempt, response, duration_ms, prices=drive.prices, model=drive.model)
    # The tokens of a session's program that no answer includes.
    other_usages = drive.session.settle_cost(usage, response, drive.prices) if drive.session is not None else []
    turn_end = LlmTurnEnd(
        finish_reason=response.finish_reason, tool_calls=len(calls) or None, **turn_usage.event_fields(usage)
    )
    entries = [
        *(transcript.block_event(block, row) for block in blocks),
        transcript.message_event(row),
        Entry(turn_end, step=step, ref_id=row.id, clean=True),
        *open_call.dropped_calls_event(dropped_count, step),
        *_trimming_events(drive),
        *drive.spending.count(usage, step),
        *session_calls.usage_events(drive, other_usages, step),
    ]
    commands = _recorded_messages(drive, step, follow_up)
    entries += [inbox.received_event(command) for command in commands]
    first = _first_call(drive, response, calls)
    entries += _start_events(first)
    turn = Commit(
        run_id=run.pk, epoch=drive.epoch, events=entries, messages=[row], usage=usage, calls=calls, commands=commands
    )
    _write(drive, turn, other_usages)
    return AnswerCommitted(row, message, calls, is_first_started=first is not None)


def _write(drive: Drive, turn: Commit, other_usages: list[TurnUsage]) -> None:
    """Write a turn, and the usage that its answer does not include, exactly once. Raises `LeaseLost`."""
    [row] = turn.messages
    commit_safely(
        partial(session_calls.write_usage, turn, other_usages) if other_usages else partial(writes.write, turn),
        is_committed=lambda: AgentRunMessage.objects.filter(pk=row.pk).exists(),
        read_result=lambda: False,  # the result is not used
        lease=drive.lease,
        proves_lease=True,
    )
    chaos.point("turn.commit_sent")


def _make_storable(drive: Drive, response: ModelResponse) -> int:
    """Correct call IDs and usage that cannot be stored, and drop excess calls. Returns the number of dropped calls.

    Also name the finish reason, if the provider's library does not know the provider's word for it.
    """
    # The program of a session runs its calls itself, so each of them needs a row.
    dropped_count = 0 if drive.session is not None else call_ids.drop_excess(response)
    call_ids.make_usable(response)
    response.usage = turn_usage.plausible(response.usage)
    response.finish_reason = finish_reasons.reason_of(response)
    return dropped_count


def _recorded_messages(drive: Drive, step: int, follow_up: FollowUp) -> list[RunCommand]:
    """Return the user message that follows this answer in the fixture, as a command; empty if none is to be sent."""
    is_for_run = follow_up.user is not None and not drive.is_last_call_of_visit(follow_up)
    if not is_for_run or inbox.has_recorded_message(drive.run.pk, number=step):
        return []
    return [inbox.recorded_message(drive.run.pk, follow_up.user, number=step)]


def _trimming_events(drive: Drive) -> list[Entry]:
    """Return the event about turns that the request left out; empty if it left out no further ones."""
    turn_count = drive.context.newly_omitted
    trimmed = ContextTrimmed(turns=turn_count, tokens=drive.context.tokens)
    return [Entry(trimmed, step=drive.run.step_count + 1, clean=True)] if turn_count else []


def _first_call(drive: Drive, response: ModelResponse, calls: list[AgentRunToolCall]) -> AgentRunToolCall | None:
    """Return the call that may be marked running in the same commit; None without one.

    Its tool must exist and must neither ask a question nor spawn runs. No hook, approval or repeat guard may block it,
    and its answer must not be refused or cut off within the call.
    With the rollback policy no call is started here: a turn can only be rolled back while none of its calls has
    started.
    """
    tool = drive.toolset.get(calls[0].tool_name) if calls else None
    if tool is None or tool.asks or tool.spawns or drive.may_be_blocked(tool):
        return None
    if drive.session is None and finish_reasons.why_not_run(response, response.tool_calls[0]):
        return None
    if drive.policies.on_crash is OnCrash.ROLL_BACK:
        return None
    newest_first = chain([response], reversed(drive.conversation.history))
    return calls[0] if repeats.streak(newest_first, calls[0].call_id) < repeats.STOP_AT else None


def _start_events(call: AgentRunToolCall | None) -> list[Entry]:
    """Mark the first call running, and return the event of its start; empty if no call starts with the commit."""
    if call is None:
        return []
    chaos.point("tool.before_start")
    return [tool_starts.start_call(call, attempt=0)]


def _planned_calls(drive: Drive, row: AgentRunMessage, response: ModelResponse) -> list[AgentRunToolCall]:
    """Return the unsaved rows of the calls of an answer."""
    parts = [(part, drive.toolset.get(part.tool_name)) for part in response.tool_calls]
    return [tool_starts.planned_call(row, part, effect=tool.effect if tool else None) for part, tool in parts]
