"""What a worker does next with the run it holds: one pure function over what is stored."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import Enum, auto


class Next(Enum):
    SAVE_CHECKPOINT = auto()  # the last step is finished and has no checkpoint
    STOP = auto()  # somebody asked for the end
    WAIT_FOR_OUTCOME = auto()  # a call's outcome is unknown and the agent's policy is to ask
    WAIT_FOR_ANSWER = auto()  # the next call asks a person
    STOP_REPEATED = auto()  # the model asks for the same call again and again
    RUN_CALL = auto()  # the last answer asked for a tool that has no result yet
    RUN_STARTED_CALL = auto()  # the same, marked running by the commit before
    GIVE_UP = auto()  # the model failed, and is not asked again
    COOL_DOWN = auto()  # the model failed, and is asked again later
    TAKE_MESSAGES = auto()  # user turns wait in the inbox
    COMPLETE = auto()
    IDLE = auto()  # it answered, has not said that it is done, and has a policy for that
    PAUSE = auto()  # an operator asked for it
    PAUSE_MAX_STEPS = auto()
    PAUSE_BUDGET = auto()  # tokens, cost or time are used up
    HAND_BACK = auto()  # the slice is over, or the worker is ending
    ASK_MODEL = auto()
    ASK_STARTED_MODEL = auto()  # the same, its start committed with the last result


@dataclass(frozen=True)
class View:
    """The facts, all of them stored but `let_go` and the model's failure."""

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
    #: The last step is finished and has no checkpoint.
    checkpoint_missing: bool = False
    #: The model failed: it is asked again later, or not at all.
    cooling_down: bool = False
    gave_up: bool = False
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
    """A pause does not wait for a person who says something of a call; otherwise the turn's tools are run first."""
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
