"""What the driver of a run does next: one pure function over what is stored."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import Enum, auto


class Next(Enum):
    STOP = auto()  # somebody asked for the end
    WAIT_FOR_UNKNOWN = auto()  # a call's outcome is unknown and the agent's policy is to ask
    WAIT_FOR_INPUT = auto()  # the next call asks a person
    STOP_REPEATED = auto()  # the model asks for the same call again and again
    FINISH_CALLS = auto()  # the last answer asked for tools that have no result yet
    TAKE_MESSAGES = auto()  # user turns wait in the inbox
    COMPLETE = auto()
    IDLE = auto()  # it answered, has not said that it is done, and has a policy for that
    PAUSE = auto()  # an operator asked for it
    PAUSE_MAX_STEPS = auto()
    PAUSE_BUDGET = auto()  # tokens, cost or time are used up
    HAND_BACK = auto()  # the slice is over, or the worker is ending
    ASK_MODEL = auto()


@dataclass(frozen=True)
class View:
    """The facts, all of them stored but `let_go`."""

    #: Types of the commands that wait in the inbox.
    pending: Set[str]
    open_calls: bool
    unknown_calls: bool
    #: The model's last word asked for nothing, or a recording stops here.
    answered: bool
    step_count: int
    step_limit: int
    #: The worker wants to let go.
    let_go: bool
    #: The next open call is the last of too many identical ones.
    repeated: bool = False
    over_budget: bool = False
    #: The next open call asks a person.
    asks: bool = False
    #: The last turn said that the run is done, and its calls have ended.
    done: bool = False
    #: An answer alone does not complete this run: its agent has a policy for that, and a way to say that it is done.
    on_idle: bool = False


def next_action(view: View) -> Next:
    """The order is the rule: the turn's tools come before a pause, a finished answer before a limit."""
    if "stop" in view.pending:
        return Next.STOP
    if view.unknown_calls:
        return Next.PAUSE if "pause" in view.pending else Next.WAIT_FOR_UNKNOWN
    if view.repeated:
        return Next.STOP_REPEATED
    if view.asks:
        return Next.PAUSE if "pause" in view.pending else Next.WAIT_FOR_INPUT
    if view.open_calls:
        return Next.HAND_BACK if view.let_go else Next.FINISH_CALLS
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


def _before_the_next_step(view: View) -> Next:
    if view.step_count >= view.step_limit:
        return Next.PAUSE_MAX_STEPS
    if view.over_budget:
        return Next.PAUSE_BUDGET
    return Next.HAND_BACK if view.let_go else Next.ASK_MODEL
