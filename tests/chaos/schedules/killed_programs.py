"""Play programs that serve remote runs: their processes are killed, and the site is restarted in between.

May import the product.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from django.db import connections

from agentops.accounts.models import Project
from tests.chaos.environment.player_environment import PlayerEnvironment
from tests.chaos.environment.program_lane import ProgramLane, ProgramSite, lane_logs
from tests.chaos.environment.workers import ChaosWorkers
from tests.chaos.programs.interface import TRIP, VISA, WAITS_OF
from tests.chaos.schedules.frame import PACE
from tests.chaos.schedules.program_plan import Kill, LanePlan, ProgramPlan, Restart, program_plan
from tests.chaos.verdict import checks, trip_checks
from tests.chaos.verdict.result import Result
from tests.chaos.verdict.trip_checks import TripTranscript
from tests.support.child_processes import ForkServer
from tests.support.web_server import WebProcess

#: Runs of one schedule; more are played as schedules of the next seeds.
MOST_RUNS = 10
LIVELY_S, CALM_S = 280.0, 120.0
LOOK_S = 0.1
#: Lanes at the same time.
LANES = 3
#: Leases that a busy machine renews in time.
LEASES = {"AGENTOPS_LEASE_S": "8", "AGENTOPS_RENEW_S": "1.5", "AGENTOPS_SWEEP_S": "0.5"}
#: The program that is broken for the proofs, and its one trip: killed after the effect of a tool, and in a model call.
PROVEN = "plain"
PROOF = ProgramPlan(
    (
        LanePlan(
            ("trip-1",),
            1,
            False,
            {"trip-1": (Kill("trip-1", "book_hotel:after", 0.01), Kill("trip-1", "model:4", 0.01))},
        ),
    ),
    (),
)
#: The checks of which one must fail, by the broken part.
SEEN_BY = {
    "once-as-read": {"effects"},
    "tools-outside-of-steps": {"effects"},
    "forgotten-journal": {"repeated", "effects"},
    "changing-answers": {"parity"},
}


@dataclass
class Restarts:
    """Restarts the site when it is due, while the programs go on."""

    web: WebProcess
    planned: list[Restart]
    result: Result
    _thread: threading.Thread = field(default_factory=threading.Thread)

    def look(self, lines: int) -> None:
        if self.planned and self.planned[0].after <= lines and not self._thread.is_alive():
            self._thread = threading.Thread(target=self._restart, args=[self.planned.pop(0)], daemon=True)
            self._thread.start()

    def _restart(self, restart: Restart) -> None:
        if restart.is_killed:
            self.web.kill()
            time.sleep(restart.away_s)
            self.web.start()
        else:
            self.web.restart()
        self.result.fault("kill of the site" if restart.is_killed else "restart of the site")

    def finish(self) -> None:
        """Wait for the end of a restart."""
        if self._thread.ident is not None:
            self._thread.join(60)


def play(environment: PlayerEnvironment, program: str, seed: int, runs: int) -> Result:
    again = f"--engine {environment.engine} --program {program} --seed {seed} --runs {runs}"
    result = Result(f"{program} {seed}, {runs} runs", environment.engine, again)
    plan = program_plan(program, environment.engine, seed, runs, WAITS_OF[program])
    return _played(environment, program, plan, result)


def prove(environment: PlayerEnvironment, name: str) -> Result:
    """Play a program that is broken. Record a failure if the rig does not see it."""
    again = f"--engine {environment.engine} --broken {name}"
    seen = Result(f"broken {name}", environment.engine, again)
    _played(environment, PROVEN, PROOF, seen, broken=name)
    result = Result(seen.name, environment.engine, again, seconds=seen.seconds, faults={f"broken {name}": 1})
    if not seen.checks & SEEN_BY[name] or seen.checks & {"rig", "processes"}:
        found = "; ".join(seen.problems) or "nothing"
        result.wrong("blind", f"with {name} the rig has found {found}: wanted {', '.join(sorted(SEEN_BY[name]))}")
        result.logs = seen.logs
    return result


def _played(
    environment: PlayerEnvironment, program: str, plan: ProgramPlan, result: Result, *, broken: str = ""
) -> Result:
    """Play a plan, and check everything."""
    began = time.monotonic()
    with _site(environment, program, result) as (site, web):
        twins = environment.trips.get(program) or _undisturbed(site)
        environment.trips[program] = twins
        site.broken = broken
        lanes = _play(site, web, plan)
        _check(lanes, twins, WAITS_OF[program], result)
        checks.check_logs(site.stage, result)
        if result.problems:
            result.logs = lane_logs(site.stage.home)
        checks.check_leftovers(site.stage, result)
    result.seconds = round(time.monotonic() - began, 1)
    return result


def _check(
    lanes: Sequence[ProgramLane], twins: dict[str, TripTranscript], waits: Collection[str], result: Result
) -> None:
    for lane in lanes:
        trip_checks.check_executed(lane, result)
        trip_checks.check_left(lane, result)
        for trip in lane.trips:
            trip_checks.check_trip(trip, twins, waits, result)
            if not trip.struck:
                result.wrong("no fault", f"no process was killed for {trip.name}")
    result.runs = sum(lane.runs.count() for lane in lanes)
    checks.check_rows(result)


@contextmanager
def _site(environment: PlayerEnvironment, program: str, result: Result) -> Iterator[tuple[ProgramSite, WebProcess]]:
    """Yield a site with a worker, which ends waits, and a host for the processes of a program."""
    with ExitStack() as stack:
        # Closed last: it knows the processes that the stage ends.
        host = ForkServer("-m", "tests.chaos.programs.host", program)
        stack.callback(host.close)
        stage, _ = stack.enter_context(environment.stage(redis=False))
        workers = ChaosWorkers(stage, result, PACE | LEASES)
        workers.start()
        env = {**workers.env(), "CHAOS_TRACE": ""}
        del env["DJANGO_SETTINGS_MODULE"]
        web = WebProcess(stage, env=env, settings_module=workers.settings_module).start()
        yield ProgramSite(stage, host, web.url, result), web
        connections.close_all()


def _lanes(site: ProgramSite, plans: Sequence[LanePlan], prefix: str) -> list[ProgramLane]:
    projects = [Project.objects.create(slug=f"{prefix}-{n}", name=f"{prefix} {n}") for n in range(len(plans))]
    return [ProgramLane(site, plan, project) for plan, project in zip(plans, projects, strict=True)]


def _undisturbed(site: ProgramSite) -> dict[str, TripTranscript]:
    """Return the transcripts of an undisturbed trip, by agent."""
    [lane] = _lanes(site, [LanePlan(("trip-0",), 1, False, {})], "calm")
    until = time.monotonic() + CALM_S
    while not lane.look():
        assert time.monotonic() < until, (
            f"the undisturbed trip does not end: {list(lane.unfinished())}\n{lane_logs(site.stage.home)}"
        )
        time.sleep(LOOK_S)
    lane.end()
    told = {TRIP: trip_checks.transcript(lane.trips[0].lineage)}
    for child in lane.runs.filter(parent_run__isnull=False):
        told[VISA] = trip_checks.transcript([child])
    assert {each.status for each in told.values()} == {"completed"}, told
    assert not site.result.problems, site.result.problems
    return told


def _play(site: ProgramSite, web: WebProcess, plan: ProgramPlan) -> list[ProgramLane]:
    """Play the lanes, some at a time, and restart the site at the same time."""
    lanes = _lanes(site, plan.lanes, "lane")
    waiting, playing = deque(lanes), list[ProgramLane]()
    restarts = Restarts(web, list(plan.restarts), site.result)
    until = time.monotonic() + LIVELY_S
    while waiting or playing:
        while waiting and len(playing) < LANES:
            playing.append(waiting.popleft())
        for lane in [lane for lane in playing if lane.look()]:
            playing.remove(lane)
            lane.end()
        restarts.look(sum(lane.count_lines() for lane in lanes))
        if time.monotonic() > until:
            left = "; ".join(text for lane in playing for text in lane.unfinished())
            site.result.wrong("liveness", f"not all is over after {LIVELY_S:g} s: {left}; {len(waiting)} not begun")
            break
        time.sleep(LOOK_S)
    restarts.finish()
    for lane in playing:
        lane.end()
    return [lane for lane in lanes if lane not in waiting]
