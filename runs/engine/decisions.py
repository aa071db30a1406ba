"""The next action of a worker that holds a run: one pure function over stored facts."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import Enum, auto

from runs.hooks.base import HookEvent
from runs.providers.finish_reasons import AnswerFault


class Next(Enum):
    SAVE_CHECKPOINT = auto()  # the last step is finished and has no checkpoint
    STOP = auto()  # a stop command is pending
    WAIT_FOR_OUTCOME = auto()  # a call's outcome is unknown, and the agent's policy is to ask
    WAIT_FOR_APPROVAL = auto()  # a person has to approve the next call
    WAIT_FOR_ANSWER = auto()  # the next call is a question to a person
    WAIT_FOR_CHILDREN = auto()  # the next call is the work of child runs that have not ended
    STOP_REPEATED = auto()  # the model repeats the same call too often
    RUN_CALL = auto()  # the next call of the last answer has no result yet
    RUN_STARTED_CALL = auto()  # the same, already marked running by the last commit
    GIVE_UP = auto()  # the model failed, and no attempt is left
    COOL_DOWN = auto()  # the model failed, and the next attempt is due later
    TAKE_MESSAGES = auto()  # messages are waiting in the inbox
    COMPLETE = auto()
    IDLE = auto()  # the agent answered without calling `done`, and has a policy for idle runs
    PAUSE = auto()  # a pause command is pending
    PAUSE_MAX_STEPS = auto()
    PAUSE_BUDGET = auto()  # tokens, cost or time are used up
    ANSWER_CUT = auto()  # the model reached a limit of tokens before the end of the last answer
    ANSWER_REFUSED = auto()  # the model refused, or a filter of the provider stopped the last answer
    # Hooks are due:
    ASK_AGENT_START = auto()
    ASK_TURN_START = auto()
    ASK_TURN_END = auto()
    ASK_AGENT_STOP = auto()
    HAND_BACK = auto()  # the slice is over, or the worker is ending
    ASK_MODEL = auto()
    ASK_STARTED_MODEL = auto()  # the same, with `llm.turn.start` already committed


@dataclass(frozen=True)
class View:
    """The facts for the next decision. All are stored, except `is_release_due` and the failure of the model."""

    #: Types of the commands in the inbox that have not been carried out.
    pending: Set[str]
    has_open_calls: bool
    has_unknown_calls: bool
    #: The last answer requests no tool calls, or the fixture that the run plays has no further answer.
    is_answered: bool
    step_count: int
    step_limit: int
    #: The slice is over, or the worker is ending.
    is_release_due: bool
    #: The last step is finished and has no checkpoint yet.
    is_checkpoint_missing: bool = False
    #: The model failed, and the next attempt is due later.
    is_cooling_down: bool = False
    #: The model failed, and no attempt is left.
    has_given_up: bool = False
    #: The next open call reaches the limit of identical calls in a row.
    is_repeated: bool = False
    is_over_budget: bool = False
    #: The next open call is a question to a person.
    is_question: bool = False
    #: The next open call is the work of child runs that are not opened yet, or have not ended.
    has_unended_children: bool = False
    #: A person has to approve the next open call.
    needs_approval: bool = False
    #: The turn events whose hooks have not been called for the current step.
    due_hooks: Set[HookEvent] = frozenset()
    #: A call of the last turn ended the run, and all its calls have results.
    is_done: bool = False
    #: A tool call ends the run, not an answer: its agent has an `on_idle` policy and a tool such as `done`.
    has_idle_policy: bool = False
    #: Why the last answer does not end the run; None for a whole answer, and for one that a policy has accepted.
    fault: AnswerFault | None = None


#: What follows an answer that does not complete the run, by its fault.
_ANSWER_ENDS = {None: Next.IDLE, AnswerFault.CUT: Next.ANSWER_CUT, AnswerFault.REFUSED: Next.ANSWER_REFUSED}


def next_action(view: View) -> Next:
    """Return the next action: the first that applies.

    Their order matters: the tool calls of a turn are finished before a pause, and a final answer completes the run even
    at a limit.
    """
    if view.is_checkpoint_missing:
        return Next.SAVE_CHECKPOINT
    if "stop" in view.pending:
        return Next.STOP
    if view.has_open_calls:
        return _with_open_calls(view)
    if HookEvent.TURN_END in view.due_hooks:
        return Next.ASK_TURN_END
    if view.has_given_up or view.is_cooling_down:
        return _unless_paused(view, Next.GIVE_UP if view.has_given_up else Next.COOL_DOWN)
    has_message = not view.pending.isdisjoint({"send", "reply"})
    if has_message and "pause" not in view.pending:
        return Next.TAKE_MESSAGES
    if not has_message and _is_complete(view):
        return Next.ASK_AGENT_STOP if HookEvent.AGENT_STOP in view.due_hooks else Next.COMPLETE
    if "pause" in view.pending:
        return Next.PAUSE
    return _ANSWER_ENDS[view.fault] if view.is_answered or view.fault else _before_the_next_step(view)


def _is_complete(view: View) -> bool:
    """Return whether nothing is left to do: a call ended the run, or the last answer is whole and requests no calls."""
    return view.is_done or (view.is_answered and not view.has_idle_policy and view.fault is None)


def _with_open_calls(view: View) -> Next:
    """Return the next action while the last answer has calls without a result.

    A pending pause replaces a wait, but the other calls of the turn are still run first.
    """
    if view.has_unknown_calls:
        return _unless_paused(view, Next.WAIT_FOR_OUTCOME)
    if view.is_repeated:
        return Next.STOP_REPEATED
    if view.needs_approval:
        return _unless_paused(view, Next.WAIT_FOR_APPROVAL)
    if view.is_question:
        return _unless_paused(view, Next.WAIT_FOR_ANSWER)
    if view.has_unended_children:
        return _unless_paused(view, Next.WAIT_FOR_CHILDREN)
    return Next.HAND_BACK if view.is_release_due else Next.RUN_CALL


def _unless_paused(view: View, action: Next) -> Next:
    return Next.PAUSE if "pause" in view.pending else action


def _before_the_next_step(view: View) -> Next:
    """Return the model call, or the action before it: a pause at a limit, a release, or hooks."""
    if view.step_count >= view.step_limit:
        return Next.PAUSE_MAX_STEPS
    if view.is_over_budget:
        return Next.PAUSE_BUDGET
    if view.is_release_due:
        return Next.HAND_BACK
    if HookEvent.AGENT_START in view.due_hooks:
        return Next.ASK_AGENT_START
    return Next.ASK_TURN_START if HookEvent.TURN_START in view.due_hooks else Next.ASK_MODEL
