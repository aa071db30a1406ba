"""The next action of a worker that holds a run: one pure function over stored facts."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import Enum, auto


class Next(Enum):
    SAVE_CHECKPOINT = auto()  # the last step is finished and has no checkpoint
    STOP = auto()  # a stop command is pending
    WAIT_FOR_OUTCOME = auto()  # a call's outcome is unknown, and the agent's policy is to ask
    WAIT_FOR_ANSWER = auto()  # the next call is a question to a person
    STOP_REPEATED = auto()  # the model repeats the same call too often
    RUN_CALL = auto()  # the next call of the last answer has no result yet
    RUN_STARTED_CALL = auto()  # the same, already marked running by the last commit
    GIVE_UP = auto()  # the model failed, and no attempt is left
    COOL_DOWN = auto()  # the model failed, and the next attempt is due later
    TAKE_MESSAGES = auto()  # messages are waiting in the inbox
    COMPLETE = auto()
    IDLE = auto()  # the agent answered without calling `done`, and has a policy for that
    PAUSE = auto()  # a pause command is pending
    PAUSE_MAX_STEPS = auto()
    PAUSE_BUDGET = auto()  # tokens, cost or time are used up
    HAND_BACK = auto()  # the slice is over, or the worker is ending
    ASK_MODEL = auto()
    ASK_STARTED_MODEL = auto()  # the same, with `llm.turn.start` already committed


@dataclass(frozen=True)
class View:
    """The facts that decide. All of them are stored, except `let_go` and the failure of the model."""

    #: Types of the pending commands.
    pending: Set[str]
    open_calls: bool
    unknown_calls: bool
    #: The last answer has no tool calls, or the recording ends here.
    answered: bool
    step_count: int
    step_limit: int
    #: The slice is over, or the worker is ending.
    let_go: bool
    #: The last step is finished and has no checkpoint yet.
    checkpoint_missing: bool = False
    #: The model failed: the next attempt is due later, or there is none.
    cooling_down: bool = False
    gave_up: bool = False
    #: The next open call reaches the limit of identical calls in a row.
    repeated: bool = False
    over_budget: bool = False
    #: The next open call is a question to a person.
    asks: bool = False
    #: A call of the last turn ended the run, and all its calls have results.
    done: bool = False
    #: The run ends by a tool call, not by an answer: its agent has an `on_idle` policy and a tool such as `done`.
    on_idle: bool = False


def next_action(view: View) -> Next:
    """Return the next action.

    The order is the rule: the tool calls of a turn are finished before a pause, and a final answer counts before a
    limit.
    """
    if view.checkpoint_missing:
        return Next.SAVE_CHECKPOINT
    if "stop" in view.pending:
        return Next.STOP
    if view.open_calls:
        return _with_open_calls(view)
    if view.gave_up or view.cooling_down:
        return _unless_paused(view, Next.GIVE_UP if view.gave_up else Next.COOL_DOWN)
    if view.pending & {"send", "reply"} and "pause" not in view.pending:
        return Next.TAKE_MESSAGES
    spoken_to = bool(view.pending & {"send", "reply"})
    if not spoken_to and (view.done or (view.answered and not view.on_idle)):
        return Next.COMPLETE
    if "pause" in view.pending:
        return Next.PAUSE
    if view.answered:
        return Next.IDLE
    return _before_the_next_step(view)


def _with_open_calls(view: View) -> Next:
    """Return the next action while the last answer has calls without a result.

    A pause comes before a wait for a person, and after all other calls of the turn.
    """
    if view.unknown_calls:
        return _unless_paused(view, Next.WAIT_FOR_OUTCOME)
    if view.repeated:
        return Next.STOP_REPEATED
    if view.asks:
        return _unless_paused(view, Next.WAIT_FOR_ANSWER)
    return Next.HAND_BACK if view.let_go else Next.RUN_CALL


def _unless_paused(view: View, action: Next) -> Next:
    return Next.PAUSE if "pause" in view.pending else action


def _before_the_next_step(view: View) -> Next:
    if view.step_count >= view.step_limit:
        return Next.PAUSE_MAX_STEPS
    if view.over_budget:
        return Next.PAUSE_BUDGET
    return Next.HAND_BACK if view.let_go else Next.ASK_MODEL
