"""Tests that each check of the rig detects a wrong input."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.chaos.verdict import checks, lineage_summary, report
from tests.chaos.verdict.history import NOTHING, History, violations
from tests.chaos.verdict.lineage_summary import LineageSummary
from tests.chaos.verdict.result import Result

TWIN = LineageSummary(
    "completed", "Done.", [["assistant", 1, "a"], ["assistant", 2, "b"]], [[1, "call"]], {1: ["m", 5, 6]}, []
)


def operated(*told: tuple[str, str]) -> History:
    """Return a history of operations for the same thing."""
    history = History()
    for outcome, answer in told:
        with history.invoke("create", "it") as operation:
            operation.end(outcome, answer)  # type: ignore[arg-type]
    return history


@pytest.mark.parametrize(
    ("told", "times", "wrong"),
    [
        ([("ok", "")], 1, False),
        ([("ok", "")], 0, True),
        ([("ok", "")], 2, True),
        ([("fail", "")], 0, False),
        ([("fail", "")], 1, True),
        ([("info", "")], 0, False),
        ([("info", "")], 1, False),
        ([("info", "")], 2, True),
        ([("info", ""), ("ok", "")], 1, False),
        ([("info", ""), ("fail", "")], 1, False),
        ([("ok", "a"), ("ok", "b")], 1, True),
    ],
)
def test_client_answers_must_match_the_database(told: list[tuple[str, str]], times: int, *, wrong: bool) -> None:
    assert bool(violations(operated(*told).operations, {("create", "it"): times})) is wrong


def test_an_operation_without_an_end_counts_as_unanswered() -> None:
    history = History()
    with pytest.raises(ZeroDivisionError), history.invoke("create", "it"):
        raise ZeroDivisionError
    assert history.operations[0].outcome == "info"


def test_an_operation_without_effect_is_not_checked() -> None:
    history = operated(("ok", ""))
    history.operations[0].kind = NOTHING
    assert violations(history.operations, {}) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "failed"},
        {"result": "Done otherwise."},
        {"messages": [["assistant", 1, "a"]]},
        {"messages": [["assistant", 1, "a"], ["assistant", 2, "c"]]},
        {"messages": [*TWIN.messages, ["assistant", 3, "c"]]},
        {"messages": [*TWIN.messages, ["tool_result", 3, "c"]], "notes": ["note 1"]},
        {"messages": [*TWIN.messages, ["assistant", 3, "c"], ["assistant", 4, "d"]], "notes": ["note 1"]},
        {"messages": [*TWIN.messages, ["user", None, "And?"], ["assistant", 3, "c"]]},
        {"calls": []},
        {"calls": [[1, "other"]]},
        {"turns": {1: ["m", 5, 7]}},
        {"turns": {}},
    ],
)
def test_a_difference_from_the_twin_is_reported(changes: dict[str, Any]) -> None:
    assert lineage_summary.differences(dataclasses.replace(TWIN, **changes), TWIN)


def test_equal_summaries_have_no_differences() -> None:
    assert lineage_summary.differences(dataclasses.replace(TWIN), TWIN) == []
    answered = dataclasses.replace(
        TWIN, messages=[*TWIN.messages, ["assistant", 3, "c"]], notes=["note 1"], result="Done again."
    )
    assert lineage_summary.differences(answered, TWIN) == []
    talked = [*answered.messages, ["user", None, "And what of 3?"], ["assistant", 4, "d"]]
    assert lineage_summary.differences(dataclasses.replace(answered, messages=talked), TWIN) == []


def arrival(epoch: int, fate: str = "looked") -> dict[str, Any]:
    return {"run": "r", "epoch": epoch, "fate": fate}


@pytest.mark.parametrize(
    ("arrivals", "wrong"),
    [
        ([arrival(1, "happened"), arrival(2, "happened")], 0),
        ([arrival(2), arrival(1, "replayed")], 0),
        ([arrival(2), arrival(1, "happened")], 1),
        ([arrival(2), arrival(1), arrival(1)], 1),
        ([arrival(3), arrival(1), arrival(2)], 0),
    ],
)
def test_a_fenced_worker_has_no_further_effects(arrivals: list[dict[str, Any]], wrong: int) -> None:
    """Allow one request in flight at the takeover. It must have no new effect, and no other request may follow."""
    result = Result("it", "sqlite", "")
    checks.check_epochs(arrivals, result)
    assert len(result.problems) == wrong


def test_a_report_without_schedules_or_with_an_unstruck_point_is_a_failure() -> None:
    good = Result("turn.committed:1:KILL", "sqlite", "", struck={"turn.committed": 1})
    assert report.failures([good], [("sqlite", "turn.committed")]) == []
    assert report.failures([good], [("sqlite", "turn.committed"), ("postgres", "turn.committed")])
    assert report.failures([], [])


def test_a_failure_is_reported_with_the_command_that_repeats_it() -> None:
    bad = Result("seed 3", "sqlite", "--engine sqlite --seed 3")
    bad.wrong("parity", "it is another story")
    [told] = report.failures([bad], [])
    assert "python -m tests.chaos --engine sqlite --seed 3" in told
    assert bad.checks == {"parity"}
    assert report.line(bad, 1, 1).startswith("FAIL")
