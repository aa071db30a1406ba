"""The report on all schedules for people, and the decision whether they passed. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tests.chaos.verdict.result import Result, total

COMMAND = "python -m tests.chaos"


def failures(results: list[Result], wanted: Iterable[tuple[str, str]]) -> list[str]:
    """Return all failures. `wanted` lists the databases and crash points at which a process must have been struck."""
    found = [
        f"{each.name} on {each.engine}: {problem}\n    again: {COMMAND} {each.again}"
        for each in results
        for problem in each.problems
    ]
    struck = {(each.engine, point) for each in results for point in each.struck}
    found += [f"nobody was struck at {point} on {engine}" for engine, point in wanted if (engine, point) not in struck]
    if not results:
        found.append("nothing was played")
    return found


def lines(results: list[Result], seconds: float) -> list[str]:
    """Return the figures of all schedules."""
    recoveries = sorted(took for each in results for took in each.recoveries)
    handovers = sorted(took for each in results for took in each.handovers)
    product = [each for each in results if "--product-pace" in each.again]
    told = [
        f"{len(results)} schedules in {seconds:.0f} s: " + _words(_by_engine(results)),
        f"runs: {sum(each.runs for each in results)}, compared with an undisturbed twin: "
        f"{sum(each.compared for each in results)}, without one: {_words(total(results, 'incomparable')) or 'none'}",
        f"faults: {_words(total(results, 'faults'))}",
        f"crash points struck: {_words(total(results, 'struck'))}",
        f"effects in the ledger: {_words(total(results, 'effects'))}",
        f"requests to the model: {sum(each.requests for each in results)}",
        f"clients' operations: {_words(total(results, 'operations'))}",
        f"idle after a death: {_spread(recoveries)}",
        f"idle after a release at SIGTERM: {_spread(handovers)}",
    ]
    if product:
        deaths = sorted(took for each in product for took in each.recoveries)
        releases = sorted(took for each in product for took in each.handovers)
        told.append(f"at the product's pace: after a death {_spread(deaths)}, after a release {_spread(releases)}")
    found = total(results, "checks")
    told.append(f"findings: {_words(found) or 'none'}")
    skipped = sum(bool(each.skipped) for each in results)
    return [*told, f"skipped: {skipped}"] if skipped else told


def line(result: Result, number: int, of: int) -> str:
    """Return the line for one finished schedule."""
    sign = "ok  " if not result.problems else "FAIL"
    faults = ", ".join(f"{kind} {times}×" if times > 1 else kind for kind, times in result.faults.items())
    told = f"{sign} {number}/{of} {result.engine:8} {result.name} ({result.seconds:g} s): "
    return told + (result.skipped or faults or "nothing happened")


def _by_engine(results: list[Result]) -> dict[str, int]:
    return {engine: sum(each.engine == engine for each in results) for engine in sorted({e.engine for e in results})}


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {counts[name]}" for name in sorted(counts))


def _spread(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    return f"{len(seconds)}×, p50 {seconds[len(seconds) // 2]:.2f} s, p100 {seconds[-1]:.2f} s"
