"""Proofs that the rig detects failures: each schedule passes without its sabotage and must fail with it.

At least one check named here must fail.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.chaos.environment.player_environment import PlayerEnvironment, Program
from tests.chaos.schedules import at_crash_points, contention
from tests.chaos.schedules.at_crash_points import PAYS_FIRST, Case
from tests.chaos.schedules.catalogue import Action
from tests.chaos.verdict.result import Result

#: Limit in seconds where the sabotage makes a run hang.
HANGS_S = 12.0
#: Sabotages proven by schedules with contention: the schedule, and the checks of which one must fail.
OF_CROWDS: dict[str, tuple[str, set[str]]] = {
    "newest-first": ("saturated", {"order"}),
    "every-death-counts": ("killer", {"blame"}),
    "every-restart-counts": ("restarts", {"blame"}),
    "dropped-for-good": ("lossy", {"liveness"}),
}
#: Checks that fail if the schedule could not be played; such a schedule proves nothing.
BROKEN = {"rig", "processes"}


@dataclass(frozen=True)
class Proof:
    case: Case
    #: Checks of which one must fail.
    seen_by: frozenset[str]
    #: Databases on which the proof works.
    engines: tuple[str, ...] = ("postgres", "sqlite")


def proofs(engine: str) -> dict[str, Proof]:
    """Return the proofs that work on this database, by sabotage name."""

    def at(point: str, action: Action = "KILL", *, hit: int = 1, seed: int = PAYS_FIRST, **more: object) -> Case:
        made = at_crash_points.case(engine, point, hit, action)
        programs = tuple(Program(seed + n, length=3, **more) for n in (0, 100))  # type: ignore[arg-type]
        return replace(made, programs=programs)

    made = {
        "no-fencing": Proof(
            replace(at("model.streaming", "STOP"), lively_s=2 * HANGS_S), frozenset({"invariants", "effects", "logs"})
        ),
        "no-persist-before-act": Proof(at("tool.returned"), frozenset({"effects"})),
        "acknowledge-then-lose": Proof(
            replace(at("turn.committed"), hinted=True, lively_s=HANGS_S), frozenset({"liveness"})
        ),
        "hint-inside-the-transaction": Proof(
            replace(at("command.in_transaction", max_steps=1), with_redis=True), frozenset({"hints"})
        ),
        "delete-instead-of-roll-back": Proof(at("turn.committed", roll_back=True), frozenset({"invariants"})),
        "lease-never-expires": Proof(replace(at("turn.committed"), lively_s=HANGS_S), frozenset({"liveness"})),
        "at-most-once-retried": Proof(at("tool.returned"), frozenset({"effects", "invariants"})),
        "seq-not-locked": Proof(at("end.in_transaction"), frozenset({"invariants"})),
        "resume-not-unique": Proof(
            replace(at("turn.committed", max_steps=1), web=True), frozenset({"history", "invariants"}), ("postgres",)
        ),
    }
    trees = replace(
        at("spawn.in_transaction"), programs=(Program(PAYS_FIRST, length=2, helpers=1),), lively_s=2 * HANGS_S
    )
    made |= {
        "children-outside-the-transaction": Proof(trees, frozenset({"trees", "invariants"})),
        "parents-not-looked-for": Proof(replace(trees, point="child.ended", lively_s=HANGS_S), frozenset({"liveness"})),
        "nobody-asked-after-a-crash": Proof(
            replace(at("approval.before"), programs=(Program(PAYS_FIRST, length=2, asks=True),)),
            frozenset({"approvals"}),
        ),
    }
    return {name: proof for name, proof in made.items() if engine in proof.engines}


def play(environment: PlayerEnvironment, name: str) -> Result:
    """Play the schedule with its sabotage. Record a failure if the rig detects none."""
    if name in OF_CROWDS:
        crowd, seen_by = OF_CROWDS[name]
        seen = contention.play(environment, crowd, broken=name)
    else:
        proof = proofs(environment.engine)[name]
        seen, seen_by = at_crash_points.play(environment, replace(proof.case, sabotage=name)), proof.seen_by
    result = Result(
        f"sabotage {name}", environment.engine, f"--engine {environment.engine} --sabotage {name}", seconds=seen.seconds
    )
    if not seen.checks & seen_by or seen.checks & BROKEN:
        found = "; ".join(seen.problems) or "nothing"
        result.wrong("blind", f"with {name} the rig has found {found}: wanted {', '.join(sorted(seen_by))}")
    result.faults = {f"sabotage {name}": 1}
    result.logs = seen.logs if result.problems else ""
    return result


def control(environment: PlayerEnvironment, name: str) -> Result:
    """Play the same schedule without the sabotage."""
    result = at_crash_points.play(environment, proofs(environment.engine)[name].case)
    result.name = f"without {name}"
    return result
