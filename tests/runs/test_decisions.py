"""What the driver does next, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runs.engine.decisions import Next, View, next_action

IDLE = View(
    pending=frozenset(),
    open_calls=False,
    unknown_calls=False,
    answered=False,
    step_count=3,
    step_limit=50,
    let_go=False,
)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, Next.ASK_MODEL),
        ({"step_count": 50}, Next.PAUSE_MAX_STEPS),
        ({"step_count": 49}, Next.ASK_MODEL),
        ({"let_go": True}, Next.HAND_BACK),
        ({"over_budget": True}, Next.PAUSE_BUDGET),
        ({"over_budget": True, "let_go": True}, Next.PAUSE_BUDGET),
        ({"over_budget": True, "step_count": 50}, Next.PAUSE_MAX_STEPS),
        ({"over_budget": True, "answered": True}, Next.COMPLETE),
        ({"over_budget": True, "pending": {"pause"}}, Next.PAUSE),
        ({"over_budget": True, "open_calls": True}, Next.RUN_CALL),
        ({"repeated": True, "open_calls": True}, Next.STOP_REPEATED),
        ({"repeated": True, "open_calls": True, "pending": {"pause"}, "let_go": True}, Next.STOP_REPEATED),
        ({"repeated": True, "open_calls": True, "pending": {"stop"}}, Next.STOP),
        ({"answered": True}, Next.COMPLETE),
        ({"answered": True, "step_count": 50}, Next.COMPLETE),
        ({"answered": True, "let_go": True}, Next.COMPLETE),
        ({"answered": True, "pending": {"send"}}, Next.TAKE_MESSAGES),
        ({"answered": True, "pending": {"reply"}}, Next.TAKE_MESSAGES),
        ({"answered": True, "pending": {"pause"}}, Next.COMPLETE),
        ({"answered": True, "pending": {"pause", "send"}}, Next.PAUSE),
        ({"pending": {"pause"}}, Next.PAUSE),
        ({"pending": {"pause", "stop"}}, Next.STOP),
        ({"open_calls": True, "pending": {"pause"}}, Next.RUN_CALL),
        ({"open_calls": True, "pending": {"stop"}}, Next.STOP),
        ({"open_calls": True, "let_go": True}, Next.HAND_BACK),
        ({"open_calls": True, "step_count": 50}, Next.RUN_CALL),
        ({"answered": True, "on_idle": True}, Next.IDLE),
        ({"answered": True, "on_idle": True, "step_count": 50}, Next.IDLE),
        ({"answered": True, "on_idle": True, "pending": {"send"}}, Next.TAKE_MESSAGES),
        ({"answered": True, "on_idle": True, "pending": {"pause"}}, Next.PAUSE),
        ({"answered": True, "on_idle": True, "pending": {"stop"}}, Next.STOP),
        ({"on_idle": True}, Next.ASK_MODEL),
        ({"done": True}, Next.COMPLETE),
        ({"done": True, "on_idle": True}, Next.COMPLETE),
        ({"done": True, "pending": {"pause"}}, Next.COMPLETE),
        ({"done": True, "pending": {"send"}}, Next.TAKE_MESSAGES),
        ({"done": True, "pending": {"pause", "reply"}}, Next.PAUSE),
        ({"done": True, "step_count": 50, "over_budget": True, "let_go": True}, Next.COMPLETE),
        ({"open_calls": True, "asks": True}, Next.WAIT_FOR_ANSWER),
        ({"open_calls": True, "asks": True, "let_go": True}, Next.WAIT_FOR_ANSWER),
        ({"open_calls": True, "asks": True, "pending": {"reply"}}, Next.WAIT_FOR_ANSWER),
        ({"open_calls": True, "asks": True, "pending": {"pause"}}, Next.PAUSE),
        ({"open_calls": True, "asks": True, "pending": {"stop", "pause"}}, Next.STOP),
        ({"open_calls": True, "asks": True, "repeated": True}, Next.STOP_REPEATED),
        ({"open_calls": True, "unknown_calls": True}, Next.WAIT_FOR_OUTCOME),
        ({"open_calls": True, "unknown_calls": True, "pending": {"pause"}}, Next.PAUSE),
        ({"open_calls": True, "unknown_calls": True, "pending": {"stop"}}, Next.STOP),
        ({"checkpoint_missing": True}, Next.SAVE_CHECKPOINT),
        ({"checkpoint_missing": True, "answered": True, "pending": {"stop"}}, Next.SAVE_CHECKPOINT),
        ({"gave_up": True}, Next.GIVE_UP),
        ({"gave_up": True, "pending": {"send"}, "let_go": True}, Next.GIVE_UP),
        ({"gave_up": True, "pending": {"pause"}}, Next.PAUSE),
        ({"gave_up": True, "pending": {"stop"}}, Next.STOP),
        ({"cooling_down": True}, Next.COOL_DOWN),
        ({"cooling_down": True, "step_count": 50}, Next.COOL_DOWN),
        ({"cooling_down": True, "pending": {"pause"}}, Next.PAUSE),
    ],
)
def test_the_order_is_the_rule(change: dict[str, object], expected: Next) -> None:
    assert next_action(replace(IDLE, **change)) is expected  # type: ignore[arg-type]
