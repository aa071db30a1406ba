"""Phrases for reason codes: each code used in the code base has one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from runs.agents.policies import ErrorKind
from runs.providers.error_messages import TEXTS
from runs.providers.retries import NOT_RETRYABLE
from runs.statuses import LOST, PauseReason, WaitReason
from timeline import events
from timeline.reasons import REASON_LABELS, reason_label

#: Keyword arguments and constants whose strings are reason codes.
KEYWORDS = {"reason", "cause", "end_reason"}
CONSTANTS = {"REASON", "RESTORED", "REPEATED_CALLS", "MAX_TURNS", "SOFT_ERROR"}
#: Functions with a reason code among their arguments.
CALLS = {"hand_back", "_abandoned", "_roll_back", "Occasion"}
ROOMS = ("engine", "lifecycle", "upkeep", "worker", "conversation")


def literals() -> Iterator[str]:
    """Return the reason codes that the modules write as string literals."""
    runs = Path(settings.BASE_DIR) / "runs"
    files = [path for room in ROOMS for path in (runs / room).rglob("*.py")]
    for path in [*files, runs / "actions" / "unknown_calls.py", runs / "actions" / "resume.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            values: list[ast.expr] = []
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                values = [each.value for each in node.keywords if each.arg in KEYWORDS]
                values += node.args if name in CALLS else []
            elif isinstance(node, ast.Assign):
                names = {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
                values = [node.value] if names & CONSTANTS else []
            for value in values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str) and " " not in value.value:
                    yield value.value


CODES = sorted(
    {*PauseReason, *WaitReason, *LOST, *ErrorKind, *TEXTS, *NOT_RETRYABLE, *literals()} - {"", "other", "forbidden"}
)


def test_the_scan_finds_codes() -> None:
    assert {"slice_over", "worker_ending", "worker_lost", "crash", "answered", "repeated_calls"} <= set(literals())


@pytest.mark.parametrize("code", CODES)
def test_each_code_has_a_phrase(code: str) -> None:
    assert reason_label(code) == REASON_LABELS[code]


def test_phrases_are_short_and_plain() -> None:
    for code, label in REASON_LABELS.items():
        assert label == label.strip(), code
        assert "_" not in label, code
        assert len(label) <= 32, code


def test_unknown_codes_lose_their_underscores_and_other_texts_stay() -> None:
    assert reason_label("some_new_code") == "some new code"
    assert reason_label("see file_name.txt") == "see file_name.txt"
    assert reason_label("") == ""


def test_sentences_have_phrases_and_no_codes() -> None:
    sentences = {
        ("run.paused", "max_steps", "detail"): "Paused (step limit reached): 20 of 20 steps used",
        ("run.phase", "slice_over", ""): "Run is queued (time slice used up)",
        ("run.stopped", "repeated_calls", ""): "Run stopped (repeated tool calls)",
        ("llm.turn.abandoned", "worker_lost", ""): "Model call abandoned (worker lost)",
    }
    for (type_, reason, detail), sentence in sentences.items():
        payload = {"reason": reason} | ({"detail": "20 of 20 steps used"} if detail else {})
        payload |= {"status": "queued"} if type_ == "run.phase" else {}
        assert events.describe(type_, payload) == sentence


def test_a_user_is_named_instead_of_the_reason() -> None:
    assert events.describe("run.paused", {"reason": "operator", "by": "oscar"}) == "Paused by oscar"
    assert events.describe("run.stopped", {"reason": "operator"}) == "Run stopped (by an operator)"
