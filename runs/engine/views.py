"""The facts for the next decision, read from a held run and its inbox."""

from __future__ import annotations

from collections.abc import Set

from django.conf import settings

from runs.conversation import repeats
from runs.engine import policy_acts
from runs.engine.decisions import View
from runs.engine.drive import Drive
from runs.engine.turns import open_call, subagents
from runs.models import AgentRunMessage
from runs.providers.finish_reasons import AnswerFault, fault_of

Role = AgentRunMessage.Role


def load_view(drive: Drive, pending: Set[str]) -> View:
    """Return the current facts. `pending` are the types of the commands in the inbox."""
    return _view(drive, pending, is_answered=_is_answered(drive), has_calls=bool(drive.open_calls))


def view_after_calls(drive: Drive) -> View:
    """Return the facts as they will be once the last open call has its result and the inbox is empty."""
    follow_up = drive.follow_up(drive.run.step_count)
    is_answered = follow_up.end or drive.is_last_call_of_visit(follow_up)
    return _view(drive, frozenset(), is_answered=is_answered, has_calls=False)


def _view(drive: Drive, pending: Set[str], *, is_answered: bool, has_calls: bool) -> View:
    run, failure, first = drive.run, drive.model_failure, drive.open_calls[0] if has_calls else None
    return View(
        pending=pending,
        has_open_calls=has_calls,
        has_unknown_calls=drive.unknown_call is not None,
        is_answered=is_answered,
        step_count=run.step_count,
        step_limit=run.step_limit(settings.AGENTOPS_MAX_TOTAL_STEPS),
        is_release_due=drive.is_release_due(),
        is_checkpoint_missing=not drive.open_calls and drive.checkpointed_step < run.step_count != run.step_base,
        is_cooling_down=failure is not None and failure.until is not None,
        has_given_up=failure is not None and failure.until is None,
        is_repeated=first is not None and drive.streak(first) >= repeats.STOP_AT,
        is_over_budget=bool(drive.spending.used_up()),
        needs_approval=drive.needs_approval is not None,
        due_hooks=drive.due_hooks() if drive.hooks else frozenset(),
        is_question=first is not None and open_call.question(drive) is not None,
        has_unended_children=first is not None and subagents.has_to_wait(drive),
        is_done=drive.ending_call() is not None,
        has_idle_policy=drive.has_idle_policy and drive.conversation.last_role == Role.ASSISTANT,
        fault=_fault(drive),
    )


def _fault(drive: Drive) -> AnswerFault | None:
    """Return why the last answer does not end the run; None for a whole answer, or one that needs no decision.

    No decision is needed if a policy has accepted the answer, a message follows it, or it belongs to an earlier run. If
    a recording has further answers, or a program continues on its side, they follow.
    """
    run, answer = drive.run, drive.last_answer
    if answer is None or run.step_count == run.step_base or drive.conversation.last_role == Role.USER:
        return None
    fault = fault_of(answer)
    if fault is None or (drive.follow_up(run.step_count).more and run.flow_run_id is None):
        return None
    return None if policy_acts.has_accepted(run) else fault


def _is_answered(drive: Drive) -> bool:
    """Whether no model call follows. Without a fixture: the last message is an answer that requests no tools.

    A fixture may have further answers, or end after tool results. A visit of a flow's node plays one turn of its
    fixture.
    """
    if drive.open_calls:
        return False
    last_role = drive.conversation.last_role
    is_answer_last = last_role == Role.ASSISTANT
    step = drive.run.step_count
    if step == drive.run.step_base:
        return is_answer_last
    follow_up = drive.follow_up(step)
    if last_role == Role.TOOL_RESULT and drive.is_last_call_of_visit(follow_up):
        return True
    if not is_answer_last:
        return follow_up.end
    # Further answers of a flow node's fixture are for later visits of the node.
    return not follow_up.more or drive.run.flow_run_id is not None
