"""The catalogue of schedules and collections. Pure: does not load Django."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tests.support.child_processes import IN_A_STEP, ON_SQLITE

Order = dict[str, Any]
ENGINES = ("postgres", "sqlite")
#: What happens to a process at a crash point: SIGKILL, a stop for longer than the lease, the end of its database
#: connections, or an error in the engine.
Action = Literal["KILL", "STOP", "CUT", "RAISE"]
ROOT = Path(__file__).resolve().parents[3]
COLLECTIONS = ("check", "all", "long", "points", "steps", "programs")
#: Programs that serve remote runs, if agentops.durable has a module for their framework; see tests/chaos/programs.
FRAMEWORKS = ("pydantic_ai", "langgraph", "openai_agents", "claude")
PROGRAMS = ("plain", *(name for name in FRAMEWORKS if next((ROOT / "agentops/durable").glob(f"{name}*"), None)))
#: Ways in which the first one is broken; see tests/chaos/programs/broken.py. `check` plays the first way.
BROKEN_PROGRAMS = ("once-as-read", "tools-outside-of-steps", "forgotten-journal", "changing-answers")
#: Runs of one schedule of a program, and of each program in `check` and in `programs`.
RUNS_AT_ONCE, CHECKED_RUNS, MANY_RUNS = 10, 2, 50
SABOTAGES = (
    "no-fencing",
    "no-persist-before-act",
    "acknowledge-then-lose",
    "hint-inside-the-transaction",
    "delete-instead-of-roll-back",
    "lease-never-expires",
    "at-most-once-retried",
    "seq-not-locked",
    "resume-not-unique",
    "newest-first",
    "every-death-counts",
    "every-restart-counts",
    "children-outside-the-transaction",
    "parents-not-looked-for",
    "nobody-asked-after-a-crash",
    "dropped-for-good",
)
#: Schedules with contention; see contention.py. The last one measures and belongs to no collection.
CROWDS = ("saturated", "killer", "restarts", "skewed", "lossy", "twenty")
#: Needs to drop a constraint, which SQLite cannot do.
ONLY_POSTGRES = ("resume-not-unique",)
#: Points met once per step if each step is a separate slice.
IN_A_SLICE = (
    "claim.before",
    "claim.committed",
    "end.hint_sent",
    "command.committed",
    "command.hint_sent",
    "sweep.run_seen",
    "sweep.message_sent",
)
#: Points met by a worker that takes over after a death at the point given as value.
AFTER_A_DEATH = {
    "recovery.before": "model.before_call",
    "recovery.done": "model.before_call",
    "lease.lapse_seen": "turn.committed",
    "run.taken_over": "turn.committed",
}
#: Points at which the engine fails in `all`: one in each stage of a step.
FAILING = (
    "claim.before",
    "claim.committed",
    "model.before_start",
    "model.answered",
    "turn.in_transaction",
    "hooks.decided",
    "tool.marked_running",
    "result.in_transaction",
    "checkpoint.in_transaction",
    "end.in_transaction",
)
#: Points at which the error is not in the engine, or is not recorded.
NOT_OF_THE_ENGINE = ("hint.", "command.", "decision.", "expiry.", "sweep.", "child.", "parent.")
#: Steps of the run of twelve steps, including the last answer.
STEPS = 12
#: tests/processes/crash covers nearly all points, and tests/chaos/test_schedules.py covers run.taken_over.
CHECKED_POINTS = ("command.in_transaction", "command.hint_sent", "decision.in_transaction", "child.ended")
CHECKED_SABOTAGES = ("no-fencing", "at-most-once-retried", "children-outside-the-transaction", "dropped-for-good")
CHECKED_CROWDS = ("saturated", "killer", "lossy")
#: The crowd's schedule without the sabotage is their control.
PROVEN_BY_CROWDS = ("newest-first", "every-death-counts", "every-restart-counts", "dropped-for-good")


def points() -> list[str]:
    """Return the points of the registry, except points covered in tests/processes and tests/runs/telemetry."""
    found = re.findall(r'^    "([a-z_]+\.[a-z_]+)":', (ROOT / "runs" / "chaos.py").read_text(), re.MULTILINE)
    elsewhere = ("alert.", "export.", "flow.", "index.", "ingest.", "schedule.", "session.")
    return [name for name in found if not name.startswith(elsewhere)]


def asked_for(asked: argparse.Namespace, engines: Sequence[str]) -> tuple[list[Order], list[tuple[str, str]]]:
    """Return the orders, and the points at which a process must be struck on each database.

    A collection is played on PostgreSQL unless --engine names a database. On SQLite, "all" plays only the points in
    ON_SQLITE.
    """
    one = _one(asked)
    if asked.program or asked.what == "programs":
        return _programs(asked, MANY_RUNS), []
    if one is not None:
        chosen = [asked.engine] if asked.engine else engines
        return [{**one, "engine": engine} for engine in chosen if _possible(one, engine)], []
    engine = asked.engine or "postgres"
    if asked.what != "all":
        return _collection(asked, engine), []
    on_sqlite = () if asked.engine else ON_SQLITE
    orders = [*_collection(asked, engine), *_points("sqlite", on_sqlite)]
    return orders, [*((engine, point) for point in points()), *(("sqlite", point) for point in on_sqlite)]


def _one(asked: argparse.Namespace) -> Order | None:
    if asked.seed is not None:
        return {"play": "seed", "seed": asked.seed, "product_pace": asked.product_pace}
    if asked.point:
        words = asked.point.split(":")
        point, hit, action = (*words, *("", "1", "KILL")[len(words) :])
        return {"play": "point", "point": point, "hit": int(hit), "action": action}
    if asked.crash:
        point, _, step = asked.crash.partition(":")
        return {"play": "crash", "point": point, "step": int(step or 0)}
    if asked.crowd:
        return {"play": "crowd", "crowd": asked.crowd}
    if asked.sabotage:
        return {"play": "sabotage", "sabotage": asked.sabotage}
    if asked.broken:
        return {"play": "broken", "broken": asked.broken}
    return None


def _possible(order: Order, engine: str) -> bool:
    return engine == "postgres" or order.get("sabotage") not in ONLY_POSTGRES


def _collection(asked: argparse.Namespace, engine: str) -> list[Order]:
    def seeds(number: int, *, product_pace: bool = False) -> list[Order]:
        first = asked.first + (500_000 if product_pace else 0)
        return [_seed(first + index, engine, product_pace=product_pace) for index in range(number)]

    match asked.what:
        case "check":
            return [
                *_points(engine, CHECKED_POINTS),
                *seeds(asked.seeds or 5),
                *_proofs(engine, CHECKED_SABOTAGES),
                *_crowds(engine, CHECKED_CROWDS),
                *_programs(asked, CHECKED_RUNS),
                *_broken(engine, BROKEN_PROGRAMS[:1]),
            ]
        case "all":
            some = seeds(asked.seeds or 8)
            twice = {"play": "point", "point": "run.taken_over", "again": True, "engine": engine}
            return [
                *seeds(2, product_pace=True),
                *_some_crashes(engine),
                *_points(engine, points()),
                twice,
                *_points(engine, FAILING, "RAISE"),
                *_proofs(engine, SABOTAGES, controls=True),
                *_crowds(engine, CROWDS[:-1]),
                *some,
                *_programs(asked, MANY_RUNS),
                *_broken(engine, BROKEN_PROGRAMS),
            ]
        case "long":
            return [*seeds(5, product_pace=True), *seeds(asked.seeds or 200)]
        case "points":
            return _exhaustive(engine)
        case _:
            everywhere = (*IN_A_STEP, *IN_A_SLICE, *AFTER_A_DEATH)
            return [_crash(engine, point, step) for point in everywhere for step in range(STEPS + 1)]


def _exhaustive(engine: str) -> list[Order]:
    """Return every point × the first, second and last hit × every action that the database supports."""
    actions = ("KILL", "STOP") if engine == "sqlite" else ("KILL", "STOP", "CUT")
    failing = [point for point in points() if not point.startswith(NOT_OF_THE_ENGINE)]
    return [
        {"play": "point", "point": point, "hit": hit, "action": action, "engine": engine}
        for action in actions
        for hit in (1, 2, 0)
        for point in points()
    ] + _points(engine, failing, "RAISE")


def _seed(seed: int, engine: str, *, product_pace: bool) -> Order:
    return {"play": "seed", "seed": seed, "product_pace": product_pace, "engine": engine}


def _points(engine: str, names: Sequence[str], action: Action = "KILL") -> list[Order]:
    return [{"play": "point", "point": point, "action": action, "engine": engine} for point in names]


def _programs(asked: argparse.Namespace, runs: int) -> list[Order]:
    """Return schedules of at most `RUNS_AT_ONCE` runs, one seed after the other. `runs`: unless a number is given."""
    first = asked.first if asked.seed is None else asked.seed
    begins = range(0, asked.runs or runs, RUNS_AT_ONCE)
    return [
        {"play": "program", "program": name, "seed": first + number, "runs": min(RUNS_AT_ONCE, begins.stop - begin)}
        | {"engine": engine}
        for number, begin in enumerate(begins)
        for name in ([asked.program] if asked.program else PROGRAMS)
        for engine in ([asked.engine] if asked.engine else ENGINES)
    ]


def _broken(engine: str, names: Sequence[str]) -> list[Order]:
    return [{"play": "broken", "broken": name, "engine": engine} for name in names]


def _crowds(engine: str, names: Sequence[str]) -> list[Order]:
    return [{"play": "crowd", "crowd": name, "engine": engine} for name in names]


def _proofs(engine: str, names: Sequence[str], *, controls: bool = False) -> list[Order]:
    kinds = ["sabotage", "control"] if controls else ["sabotage"]
    made = [
        {"play": kind, "sabotage": name, "engine": engine}
        for name in names
        for kind in kinds
        if kind == "sabotage" or name not in PROVEN_BY_CROWDS
    ]
    return [order for order in made if _possible(order, engine)]


def _crash(engine: str, point: str, step: int) -> Order:
    """Return the order for a crash in this step; step 0: at every restart."""
    return {"play": "crash", "point": point, "step": step, "engine": engine}


def _some_crashes(engine: str) -> list[Order]:
    """Return one point for each step with tools, and two points that are struck at every restart."""
    spread = [_crash(engine, IN_A_STEP[step * 5 % 13], step) for step in range(1, STEPS)]
    return [_crash(engine, "turn.committed", 0), _crash(engine, "tool.returned", 0), *spread]


def again(order: Order) -> str:
    """Return the command-line options that repeat an order."""
    options = f"--engine {order['engine']}"
    match order["play"]:
        case "seed":
            return f"{options} --seed {order['seed']}{' --product-pace' if order['product_pace'] else ''}"
        case "point":
            return f"{options} --point {order['point']}:{order.get('hit', 1)}:{order.get('action', 'KILL')}"
        case "crash":
            return f"{options} --crash {order['point']}:{order['step']}"
        case "sabotage":
            return f"{options} --sabotage {order['sabotage']}"
        case "crowd":
            return f"{options} --crowd {order['crowd']}"
        case "broken":
            return f"{options} --broken {order['broken']}"
        case "program":
            return f"{options} --program {order['program']} --seed {order['seed']} --runs {order['runs']}"
    return options
