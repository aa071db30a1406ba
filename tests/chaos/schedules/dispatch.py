"""Dispatch an order, given as JSON, to the module that plays it.

May import all of tests.chaos.
"""

from __future__ import annotations

from typing import Any

from tests.chaos.environment.player_environment import PlayerEnvironment
from tests.chaos.schedules import at_crash_points, at_steps, contention, killed_programs, random_faults, sabotage_proofs
from tests.chaos.schedules import random_plan as plans
from tests.chaos.verdict.result import Result


def play(environment: PlayerEnvironment, order: dict[str, Any]) -> Result:
    match order:
        case {"play": "point"}:
            case_ = at_crash_points.case(
                environment.engine, order["point"], order.get("hit", 1), order.get("action", "KILL")
            )
            return at_crash_points.play(environment, at_crash_points.twice(case_) if order.get("again") else case_)
        case {"play": "seed"}:
            made = plans.plan(order["seed"], environment.engine, product_pace=order.get("product_pace", False))
            return random_faults.play(environment, made)
        case {"play": "crash"}:
            return at_steps.play(environment, at_steps.Crash(environment.engine, order["point"], order["step"]))
        case {"play": "crowd"}:
            return contention.play(environment, order["crowd"])
        case {"play": "program"}:
            return killed_programs.play(environment, order["program"], order["seed"], order["runs"])
        case {"play": "broken"}:
            return killed_programs.prove(environment, order["broken"])
        case {"play": "sabotage"}:
            return sabotage_proofs.play(environment, order["sabotage"])
        case {"play": "control"}:
            return sabotage_proofs.control(environment, order["sabotage"])
    raise ValueError(f"nobody knows how to play {order}")
