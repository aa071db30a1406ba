"""The plan of a seed: the runs, clients and faults of a schedule. Pure; the same seed gives the same plan.

Faults and operations are due after a number of requests to the model, not at a time, so that they also hit active runs
on a slow machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from tests.chaos.schedules.catalogue import Action
from tests.support.child_processes import IN_A_STEP

#: Faults that end or delay a worker. An armed worker may never reach its point.
STRONG = ("kill", "term", "stop")
OF_WORKERS = (*STRONG, *STRONG, "armed", "armed")
OF_POSTGRES = ("cut", "restart postgres")
OF_REDIS = ("flush redis", "kill redis", "hints")
OF_WEB = ("kill web", "restart web", "drop listeners")
#: Points at which an armed worker may be struck. A worker may pass each of them several times.
ARMED = ("claim.before", "claim.committed", *IN_A_STEP, "sweep.run_seen", "sweep.message_sent")
PROGRAMS = 24


#: Points at which a web process may be struck.
ARMED_WEB = ("command.in_transaction", "command.committed", "command.hint_sent")


@dataclass(frozen=True)
class PlannedAction:
    """An action that is due after a number of requests to the model."""

    after: int
    kind: str
    #: Selects one of the candidates at that time.
    number: int


@dataclass(frozen=True)
class Wanted:
    """The arguments of a run's program."""

    seed: int
    length: int
    max_steps: int
    roll_back: bool
    talkative: bool
    faults: bool
    slow: float
    helpers: int = 0
    asks: bool = False


@dataclass(frozen=True)
class Plan:
    seed: int
    engine: str
    web: bool
    redis: bool
    runs: list[Wanted]
    #: The pool of each worker.
    workers: list[str]
    armed: str
    action: Action
    #: The web process's crash point and hit, or "".
    web_armed: str
    faults: list[PlannedAction]
    operations: list[PlannedAction]
    product_pace: bool = False
    again: str = field(default="", compare=False)


def plan(seed: int, engine: str, *, product_pace: bool = False) -> Plan:
    dice = Random(f"{engine} {seed} {product_pace}")
    runs = [_run(dice) for _ in range(dice.randrange(4, 8))]
    runs = _with_trees(Random(f"trees {engine} {seed} {product_pace}"), runs)
    steps = sum(run.length + 1 for run in runs)
    web, redis = dice.random() < 0.4, engine == "postgres" or dice.random() < 0.3
    workers = ["threads"] * dice.choice([2, 2, 3])
    # Forked children share no memory, so without Redis no message would reach them.
    if dice.random() < 0.25 and redis:
        workers[0] = "prefork"
    faults = _faults(dice, engine, steps, web=web, redis=redis, product_pace=product_pace)
    armed = f"{dice.choice(ARMED)}:{dice.randrange(1, 6)}" if any(f.kind == "armed" for f in faults) else ""
    actions: list[Action] = ["KILL", "KILL", "STOP"] if engine == "sqlite" else ["KILL", "KILL", "STOP", "CUT"]
    return Plan(
        seed,
        engine,
        web,
        redis,
        runs,
        workers,
        armed,
        dice.choice(actions),
        web_armed=f"{dice.choice(ARMED_WEB)}:{dice.randrange(1, 4)}" if dice.random() < 0.3 else "",
        faults=faults,
        operations=_operations(dice, steps),
        product_pace=product_pace,
        again=f"--engine {engine} --seed {seed}{' --product-pace' if product_pace else ''}",
    )


def _run(dice: Random) -> Wanted:
    # Not both: after a rollback, the recorded user turn stays in the inbox and is read before the next one.
    roll_back = dice.random() < 0.2
    return Wanted(
        seed=dice.randrange(PROGRAMS),
        length=dice.randrange(3, 7),
        max_steps=dice.choice([50, 50, 2, 3]),
        roll_back=roll_back,
        talkative=not roll_back and dice.random() < 0.3,
        faults=dice.random() < 0.5,
        slow=dice.choice([1.0, 2.0, 4.0]),
    )


def _with_trees(dice: Random, runs: list[Wanted]) -> list[Wanted]:
    """Give some runs child runs and approvals. Seeds with child runs are unique, because their agents are."""
    made: list[Wanted] = []
    for run in runs:
        is_plain = not run.roll_back and not run.talkative and run.seed not in {each.seed for each in made}
        helpers = dice.choice([0, 0, 1, 3]) if is_plain else 0
        made.append(replace(run, helpers=helpers, asks=dice.random() < 0.3))
    return made


def _faults(
    dice: Random, engine: str, steps: int, *, web: bool, redis: bool, product_pace: bool
) -> list[PlannedAction]:
    """Plan one to six faults. The first one hits a worker at work."""
    if product_pace:
        return [PlannedAction(2, "kill", dice.randrange(9)), PlannedAction(steps // 2, "term", dice.randrange(9))]
    kinds = [*OF_WORKERS, *(OF_POSTGRES if engine == "postgres" else ())]
    kinds += [*(OF_REDIS if redis else ()), *(OF_WEB if web else ())]
    some = [dice.choice(STRONG), *(dice.choice(kinds) for _ in range(dice.randrange(6)))]
    return sorted((_planned(dice, kind, steps, early=not index) for index, kind in enumerate(some)), key=_when)


def _operations(dice: Random, steps: int) -> list[PlannedAction]:
    kinds = [*["send"] * dice.randrange(5), *["pause"] * dice.randrange(3), *["stop"] * (dice.random() < 0.2)]
    return sorted((_planned(dice, kind, steps) for kind in kinds), key=_when)


def _planned(dice: Random, kind: str, steps: int, *, early: bool = False) -> PlannedAction:
    return PlannedAction(dice.randrange(1, max(steps // 3 if early else steps, 2)), kind, dice.randrange(100))


def _when(planned: PlannedAction) -> tuple[int, str, int]:
    return (planned.after, planned.kind, planned.number)
