"""The plan of a seed for killed programs: lanes of trips, kills of each trip, restarts of the site. Pure.

A lane is a project with one or two processes of the program, which execute the trips of the lane at the same time. The
kills of a trip are in the order of the script, each in another turn, so that each is reached after the one before it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from random import Random

from tests.chaos.programs import interface, ledger
from tests.chaos.programs.interface import CHECK_VISA, TOOLS, Asked, Turn

#: Moments of a wait: the rig kills the processes of a run that waits.
WAIT = "wait:"
#: Longest delay of a kill within its moment, and of a kill at any time after it.
WITHIN_S, LATER_S = 0.8 * ledger.MOMENT_S, 0.6
#: Most kills of a trip, and of all trips of a lane: a run pauses after five deaths in one step.
MOST_OF_TRIP, MOST_OF_LANE = 3, 4
#: Longest times in seconds for which the site is away. After the longer one, its processes may have lost their runs.
AWAY_S = (2.0, 9.0)


@dataclass(frozen=True)
class Kill:
    """The death of the process that executes a trip, or its child run."""

    trip: str
    moment: str
    after_s: float


@dataclass(frozen=True)
class LanePlan:
    trips: tuple[str, ...]
    #: Number of processes at the same time.
    processes: int
    #: Whether the runs of a killed process wait until their leases are over. Otherwise the rig ends them at once.
    waits_for_leases: bool
    #: The kills of each trip, in order.
    kills: dict[str, tuple[Kill, ...]]


@dataclass(frozen=True)
class Restart:
    """The site's web process ends and starts again."""

    #: Due after this number of lines in the ledgers of all lanes.
    after: int
    is_killed: bool
    away_s: float


@dataclass(frozen=True)
class ProgramPlan:
    lanes: tuple[LanePlan, ...]
    restarts: tuple[Restart, ...]


def program_plan(program: str, engine: str, seed: int, runs: int, waits: Collection[str]) -> ProgramPlan:
    dice = Random(f"{program} {engine} {seed}")
    names = [f"trip-{seed}-{number}" for number in range(1, runs + 1)]
    lanes: list[LanePlan] = []
    while names:
        size = dice.choice([1, 1, 2, 3])
        lanes.append(_lane(dice, tuple(names[:size]), waits))
        names = names[size:]
    lines = len(ledger_lines(waits)) * runs
    restarts = [
        Restart(dice.randrange(lines // 8, lines * 7 // 8), dice.random() < 0.5, dice.uniform(0, dice.choice(AWAY_S)))
        for _ in range(1 + (runs > 4))
    ]
    return ProgramPlan(tuple(lanes), tuple(sorted(restarts, key=lambda restart: restart.after)))


def _lane(dice: Random, trips: tuple[str, ...], waits: Collection[str]) -> LanePlan:
    most = MOST_OF_LANE // len(trips)
    kills = {trip: _kills(dice, trip, dice.randint(1, min(MOST_OF_TRIP, most)), waits) for trip in trips}
    return LanePlan(trips, dice.choice([1, 1, 2]), dice.random() < 0.25, kills)


def _kills(dice: Random, trip: str, count: int, waits: Collection[str]) -> tuple[Kill, ...]:
    turns = interface.script(trip, {}, waits)
    chosen = sorted(dice.sample(range(len(turns)), count))
    return tuple(_kill(dice, trip, number + 1, turns[number]) for number in chosen)


def _kill(dice: Random, trip: str, number: int, turn: Turn) -> Kill:
    """Return a kill in a turn: in its model call or a time after it, in one of its tools, or while it waits."""
    calls = [asked for asked in turn.calls if asked.name not in (interface.REST,)]
    if not calls:
        return Kill(trip, f"model:{number}", dice.uniform(0, WITHIN_S))  # later, the run would be over
    if dice.random() < 0.25:
        return Kill(trip, f"model:{number}", dice.uniform(0, dice.choice([WITHIN_S, WITHIN_S, LATER_S])))
    return _kill_in(dice, trip, dice.choice(calls))


def _kill_in(dice: Random, trip: str, asked: Asked) -> Kill:
    if asked.name == CHECK_VISA and dice.random() < 0.75:
        moment = dice.choice(["model:1", "model:2", "stamp:before", "stamp:after"])
        return Kill(f"{trip}/visa", moment, dice.uniform(0, WITHIN_S))
    if asked.is_wait or (TOOLS[asked.name].needs_approval and dice.random() < 0.3):
        return Kill(trip, WAIT + asked.name, 0.0)
    later = dice.choice([WITHIN_S, WITHIN_S, LATER_S])
    return Kill(trip, f"{asked.name}:{dice.choice(['before', 'after'])}", dice.uniform(0, later))


def ledger_lines(waits: Collection[str]) -> list[str]:
    """Return a text for each line that an undisturbed trip adds to the ledger."""
    lines = []
    for turn in interface.script("trip-0", {}, waits):
        lines += ["model", "model"]
        for asked in turn.calls:
            lines += [asked.name] * (0 if asked.is_wait else 2)
    return lines
