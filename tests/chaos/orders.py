"""What a player can be asked to play, as JSON: a crash point, a seed, a long run step by step.

May import all of the rig.
"""

from __future__ import annotations

from typing import Any

from tests.chaos import crowds, nemesis, points, proof, steps
from tests.chaos import plan as plans
from tests.chaos.place import Place
from tests.chaos.result import Result


def play(place: Place, order: dict[str, Any]) -> Result:
    match order:
        case {"play": "point"}:
            case_ = points.case(place.engine, order["point"], order.get("hit", 1), order.get("action", "KILL"))
            return points.play(place, points.twice(case_) if order.get("again") else case_)
        case {"play": "seed"}:
            made = plans.plan(order["seed"], place.engine, product_pace=order.get("product_pace", False))
            return nemesis.play(place, made)
        case {"play": "crash"}:
            return steps.play(place, steps.Crash(place.engine, order["point"], order["step"]))
        case {"play": "crowd"}:
            return crowds.play(place, order["crowd"])
        case {"play": "sabotage"}:
            return proof.play(place, order["sabotage"])
        case {"play": "control"}:
            return proof.control(place, order["sabotage"])
    raise ValueError(f"nobody knows how to play {order}")
