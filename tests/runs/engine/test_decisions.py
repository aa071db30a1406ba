"""The next action of the driver, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runs.engine.decisions import Next, View, next_action
from runs.hooks.base import HookEvent
from runs.providers.finish_reasons import AnswerFault

IDLE = View(
    pending=frozenset(),
    has_open_calls=False,
    has_unknown_calls=False,
    is_answered=False,
    step_count=3,
    step_limit=50,
    is_release_due=False,
)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, Next.ASK_MODEL),
        ({"step_count": 50}, Next.PAUSE_MAX_STEPS),
        ({"step_count": 49}, Next.ASK_MODEL),
        ({"is_release_due": True}, Next.HAND_BACK),
        ({"is_over_budget": True}, Next.PAUSE_BUDGET),
        ({"is_over_budget": True, "is_release_due": True}, Next.PAUSE_BUDGET),
        ({"is_over_budget": True, "step_count": 50}, Next.PAUSE_MAX_STEPS),
        ({"is_over_budget": True, "is_answered": True}, Next.COMPLETE),
        ({"is_over_budget": True, "pending": {"pause"}}, Next.PAUSE),
        ({"is_over_budget": True, "has_open_calls": True}, Next.RUN_CALL),
        ({"is_repeated": True, "has_open_calls": True}, Next.STOP_REPEATED),
        (
            {"is_repeated": True, "has_open_calls": True, "pending": {"pause"}, "is_release_due": True},
            Next.STOP_REPEATED,
        ),
        ({"is_repeated": True, "has_open_calls": True, "pending": {"stop"}}, Next.STOP),
        ({"is_answered": True}, Next.COMPLETE),
        ({"is_answered": True, "step_count": 50}, Next.COMPLETE),
        ({"is_answered": True, "is_release_due": True}, Next.COMPLETE),
        ({"is_answered": True, "pending": {"send"}}, Next.TAKE_MESSAGES),
        ({"is_answered": True, "pending": {"reply"}}, Next.TAKE_MESSAGES),
        ({"is_answered": True, "pending": {"pause"}}, Next.COMPLETE),
        ({"is_answered": True, "pending": {"pause", "send"}}, Next.PAUSE),
        ({"pending": {"pause"}}, Next.PAUSE),
        ({"pending": {"pause", "stop"}}, Next.STOP),
        ({"has_open_calls": True, "pending": {"pause"}}, Next.RUN_CALL),
        ({"has_open_calls": True, "pending": {"stop"}}, Next.STOP),
        ({"has_open_calls": True, "is_release_due": True}, Next.HAND_BACK),
        ({"has_open_calls": True, "step_count": 50}, Next.RUN_CALL),
        ({"is_answered": True, "has_idle_policy": True}, Next.IDLE),
        ({"is_answered": True, "has_idle_policy": True, "step_count": 50}, Next.IDLE),
        ({"is_answered": True, "has_idle_policy": True, "pending": {"send"}}, Next.TAKE_MESSAGES),
        ({"is_answered": True, "has_idle_policy": True, "pending": {"pause"}}, Next.PAUSE),
        ({"is_answered": True, "has_idle_policy": True, "pending": {"stop"}}, Next.STOP),
        ({"has_idle_policy": True}, Next.ASK_MODEL),
        ({"is_done": True}, Next.COMPLETE),
        ({"is_done": True, "has_idle_policy": True}, Next.COMPLETE),
        ({"is_done": True, "pending": {"pause"}}, Next.COMPLETE),
        ({"is_done": True, "pending": {"send"}}, Next.TAKE_MESSAGES),
        ({"is_done": True, "pending": {"pause", "reply"}}, Next.PAUSE),
        ({"is_done": True, "step_count": 50, "is_over_budget": True, "is_release_due": True}, Next.COMPLETE),
        ({"has_open_calls": True, "is_question": True}, Next.WAIT_FOR_ANSWER),
        ({"has_open_calls": True, "is_question": True, "is_release_due": True}, Next.WAIT_FOR_ANSWER),
        ({"has_open_calls": True, "is_question": True, "pending": {"reply"}}, Next.WAIT_FOR_ANSWER),
        ({"has_open_calls": True, "is_question": True, "pending": {"pause"}}, Next.PAUSE),
        ({"has_open_calls": True, "is_question": True, "pending": {"stop", "pause"}}, Next.STOP),
        ({"has_open_calls": True, "is_question": True, "is_repeated": True}, Next.STOP_REPEATED),
        ({"has_open_calls": True, "has_unknown_calls": True}, Next.WAIT_FOR_OUTCOME),
        ({"has_open_calls": True, "has_unknown_calls": True, "pending": {"pause"}}, Next.PAUSE),
        ({"has_open_calls": True, "has_unknown_calls": True, "pending": {"stop"}}, Next.STOP),
        ({"is_checkpoint_missing": True}, Next.SAVE_CHECKPOINT),
        ({"is_checkpoint_missing": True, "is_answered": True, "pending": {"stop"}}, Next.SAVE_CHECKPOINT),
        ({"has_given_up": True}, Next.GIVE_UP),
        ({"has_given_up": True, "pending": {"send"}, "is_release_due": True}, Next.GIVE_UP),
        ({"has_given_up": True, "pending": {"pause"}}, Next.PAUSE),
        ({"has_given_up": True, "pending": {"stop"}}, Next.STOP),
        ({"is_cooling_down": True}, Next.COOL_DOWN),
        ({"is_cooling_down": True, "step_count": 50}, Next.COOL_DOWN),
        ({"is_cooling_down": True, "pending": {"pause"}}, Next.PAUSE),
    ],
)
def test_the_first_matching_condition_decides(change: dict[str, object], expected: Next) -> None:
    assert next_action(replace(IDLE, **change)) is expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fault", "end"), [(AnswerFault.CUT, Next.ANSWER_CUT), (AnswerFault.REFUSED, Next.ANSWER_REFUSED)]
)
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"is_answered": True}, None),
        ({}, None),  # the results of its calls are not sent to the model
        ({"is_answered": True, "has_idle_policy": True}, None),
        ({"is_answered": True, "step_count": 50, "is_over_budget": True, "is_release_due": True}, None),
        ({"is_answered": True, "due_hooks": {HookEvent.AGENT_STOP, HookEvent.TURN_START}}, None),
        ({"is_answered": True, "due_hooks": {HookEvent.TURN_END}}, Next.ASK_TURN_END),
        ({"is_checkpoint_missing": True}, Next.SAVE_CHECKPOINT),
        ({"has_open_calls": True}, Next.RUN_CALL),
        ({"is_done": True}, Next.COMPLETE),
        ({"is_answered": True, "pending": {"send"}}, Next.TAKE_MESSAGES),
        ({"is_answered": True, "pending": {"reply"}, "has_idle_policy": True}, Next.TAKE_MESSAGES),
        ({"is_answered": True, "pending": {"pause"}}, Next.PAUSE),
        ({"is_answered": True, "pending": {"pause", "send"}}, Next.PAUSE),
        ({"is_answered": True, "pending": {"stop"}}, Next.STOP),
    ],
)
def test_an_answer_with_a_fault_ends_nothing(
    fault: AnswerFault, end: Next, change: dict[str, object], expected: Next | None
) -> None:
    assert next_action(replace(IDLE, fault=fault, **change)) is (expected or end)  # type: ignore[arg-type]
