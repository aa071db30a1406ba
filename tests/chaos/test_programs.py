"""Tests of plans and checks for killed programs. `python -m tests.chaos programs` plays them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.chaos.programs import broken, interface, ledger
from tests.chaos.programs.interface import WAITS
from tests.chaos.schedules import catalogue, killed_programs
from tests.chaos.schedules.program_plan import MOST_OF_LANE, WAIT, ProgramPlan, ledger_lines, program_plan
from tests.chaos.verdict.trip_checks import Executed, TripTranscript, differences, faults_of_step

SEEDS = range(100)


def planned(seed: int, waits: frozenset[str] = WAITS) -> ProgramPlan:
    return program_plan("plain", "sqlite", seed, 10, waits)


def test_the_same_seed_gives_the_same_plan() -> None:
    assert [planned(seed) for seed in SEEDS] == [planned(seed) for seed in SEEDS]
    assert len({repr(planned(seed)) for seed in SEEDS}) == len(SEEDS)


def test_each_trip_is_killed_and_no_lane_too_often() -> None:
    for seed in SEEDS:
        lanes = planned(seed).lanes
        trips = [trip for lane in lanes for trip in lane.trips]
        assert len(set(trips)) == len(trips) == 10
        for lane in lanes:
            assert all(lane.kills[trip] for trip in lane.trips)
            assert sum(map(len, lane.kills.values())) <= MOST_OF_LANE
    assert {lane.waits_for_leases for seed in SEEDS for lane in planned(seed).lanes} == {False, True}


def test_programs_are_killed_in_model_calls_tools_and_waits() -> None:
    kills = [kill for seed in SEEDS for lane in planned(seed).lanes for trip in lane.trips for kill in lane.kills[trip]]
    moments = {kill.moment for kill in kills}

    assert {f"model:{number}" for number in range(1, 9)} <= moments
    assert {f"{name}:{when}" for name in interface.TOOLS for when in ("before", "after")} <= moments
    assert {f"{WAIT}{wait}" for wait in WAITS - {interface.REST}} <= moments
    assert {kill.trip.partition("/")[2] for kill in kills} == {"", "visa"}


def test_the_site_is_restarted_while_the_programs_work() -> None:
    for seed in SEEDS:
        restarts = planned(seed).restarts
        assert len(restarts) == 2
        assert all(0 < restart.after < 10 * len(ledger_lines(WAITS)) for restart in restarts)


def test_a_script_leaves_out_unknown_waits() -> None:
    def names(waits: frozenset[str]) -> set[str]:
        return {asked.name for turn in interface.script("trip-1", {}, waits) for asked in turn.calls}

    tools = set(interface.TOOLS_OF[interface.TRIP])
    assert names(WAITS) == tools | WAITS
    assert names(frozenset()) == tools
    assert not {kill.moment for kill in _kills(frozenset())} & {f"{WAIT}{wait}" for wait in WAITS}


def _kills(waits: frozenset[str]) -> list[Any]:
    return [kill for seed in SEEDS for lane in planned(seed, waits).lanes for of in lane.kills.values() for kill in of]


def test_prompts_contain_the_name_of_their_trip() -> None:
    assert interface.trip_of(interface.prompt_of("trip-7-1")) == "trip-7-1"
    assert interface.trip_of(interface.child_prompt("trip-7-1")) == "trip-7-1/visa"


def test_an_order_is_carried_out_by_one_process(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ledger.DIRECTORY, str(tmp_path))
    ledger.arm(tmp_path, "trip-1/visa", "stamp:after", 60.0)
    assert [ledger.order_for("trip-1/visa", "stamp:before"), ledger.order_for("trip-1", "stamp:after")] == [None, None]
    assert [ledger.order_for("trip-1/visa", "stamp:after") for _ in range(2)] == [60.0, None]

    ledger.note("trip-1", "pay", "effect", output="paid")
    [line] = ledger.read(tmp_path)
    assert (line["trip"], line["step"], line["what"], line["output"]) == ("trip-1", "pay", "effect", "paid")


def test_every_way_to_break_a_program_has_a_proof() -> None:
    assert set(broken.BROKEN) == set(catalogue.BROKEN_PROGRAMS) == set(killed_programs.SEEN_BY)


# --- The checks ---


def executed(step: str, *lines: tuple[float, str], resolved: tuple[str, ...] = ()) -> Executed:
    return Executed("trip-1", step, [{"at": at, "what": what} for at, what in lines], resolved)


DONE = [(1.0, "begin"), (2.0, "effect"), (3.0, "end")]
BEGUN, EFFECT = (0.1, "begin"), (0.2, "effect")


@pytest.mark.parametrize(
    ("step", "stored_at"),
    [
        (executed("pay", *DONE), 4.0),
        # Killed before the effect, and tried again as a person wanted.
        (executed("pay", BEGUN, *DONE, resolved=("retry",)), 4.0),
        # Killed after the effect, which a person has confirmed.
        (executed("pay", BEGUN, EFFECT, resolved=("done",)), 4.0),
        # Killed when the site had started the step, and its function had not begun.
        (executed("pay", *DONE, resolved=("retry",)), 4.0),
        (executed("weather", BEGUN, (1.0, "begin"), (1.1, "end")), 4.0),
        (executed("notify", BEGUN, EFFECT, *DONE), 4.0),
        (executed("model:1", BEGUN, (1.0, "begin"), (1.1, "end")), 4.0),
    ],
)
def test_interrupted_steps_may_be_repeated(step: Executed, stored_at: float) -> None:
    assert faults_of_step(step, stored_at) == []


@pytest.mark.parametrize(
    ("step", "stored_at", "fault"),
    [
        (executed("weather", *DONE), 0.5, "again 0.500 s after"),
        (executed("model:1", BEGUN, (1.0, "begin")), 0.5, "again"),
        (executed("weather", *DONE), None, "no outcome was stored"),
        (executed("pay", BEGUN, EFFECT, *DONE, resolved=("retry",)), 4.0, "its effect 2 times"),
        (executed("pay", BEGUN, resolved=("done",)), 4.0, "its effect 0 times"),
        (executed("pay", BEGUN, *DONE), 4.0, "began 2 times"),
        (executed("pay", BEGUN, EFFECT), 4.0, "was interrupted 1 times"),
    ],
)
def test_a_repeated_step_is_reported(step: Executed, stored_at: float | None, fault: str) -> None:
    assert fault in "; ".join(faults_of_step(step, stored_at))


TWIN = TripTranscript("completed", "Done.", [["user", ["Go."], []], ["assistant", ["a"], [["pay", "once"]]]], (10, 5))


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "failed"},
        {"result": "Done otherwise."},
        {"messages": TWIN.messages[:1]},
        {"messages": [*TWIN.messages, ["assistant", ["b"], []]]},
        {"messages": [TWIN.messages[0], ["assistant", ["a"], [["pay", "read"]]]]},
        {"tokens": (20, 5)},
    ],
)
def test_a_difference_from_the_undisturbed_trip_is_reported(changes: dict[str, Any]) -> None:
    assert differences(TWIN, TWIN) == []
    assert differences(dataclasses.replace(TWIN, **changes), TWIN)
