"""The workers of a schedule. The rig starts, watches, ends and replaces them, as the operator of a site would.

A worker that ends without cause is a failure.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.chaos.schedules.catalogue import Action
from tests.chaos.verdict.result import Result
from tests.support.child_processes import ChildProcess
from tests.support.stage import Stage

#: Delay in seconds before a worker is replaced.
RESTART_S = 0.2
#: Startup time in seconds on a loaded machine.
SLOW_START_S = 10.0


@dataclass
class ChaosWorker:
    """A worker's process and its state in the schedule."""

    process: ChildProcess
    name: str
    armed: str = ""
    action: Action = "KILL"
    pool: str = "threads"
    #: How the rig ended it; empty while it should be alive.
    fate: str = ""
    #: When the rig wakes it; 0: not suspended by the rig.
    wakes_at: float = 0.0
    ended: float = 0.0
    met: bool = False
    began: float = field(default_factory=time.monotonic)

    @property
    def up(self) -> bool:
        """Return whether it has started. Before that, any signal ends it."""
        return time.monotonic() > self.began + 1 and "[queues]" in self.process.said(500)

    @property
    def early(self) -> bool:
        """Return whether SIGTERM arrived before its handler existed, which equals a kill."""
        return self.process.exit_code == -signal.SIGTERM and self.ended < self.began + SLOW_START_S


@dataclass
class ChaosWorkers:
    stage: Stage
    result: Result
    pace: dict[str, str]
    settings_module: str = "tests.chaos.environment.settings"
    sabotage: str = ""
    all: list[ChaosWorker] = field(default_factory=list)
    #: Times of deaths by process ID.
    deaths: dict[int, float] = field(default_factory=dict)
    #: Times at which suspended workers were woken, by process ID.
    woken_at: dict[int, float] = field(default_factory=dict)
    #: Whether there is work that a fault can hit.
    busy: Callable[[], bool] = lambda: True
    #: Whether a run of this schedule kills its workers.
    mortal: bool = False
    #: Clock offsets of the workers in seconds, in turn; empty: none.
    skews: tuple[int, ...] = ()
    _due: list[float] = field(default_factory=list)
    _struck: int = 0

    @property
    def lease_s(self) -> float:
        return float(self.pace["AGENTOPS_LEASE_S"])

    @property
    def trace(self) -> Path:
        return self.stage.home / "trace"

    def env(self) -> dict[str, str]:
        """Return the environment variables of any process of the product in this schedule."""
        return {
            **self.pace,
            "DJANGO_SETTINGS_MODULE": self.settings_module,
            "CHAOS_TRACE": str(self.trace),
            "CHAOS_SABOTAGE": self.sabotage,
        }

    def start(self, armed: str = "", action: Action = "KILL", *, pool: str = "threads", **env: str) -> ChaosWorker:
        name = f"agentops-worker-{len(self.all)}"
        size = env.pop("AGENTOPS_CONCURRENCY", "4" if pool == "threads" else "2")
        argv = ["-A", "agentops", "worker", "--pool", pool, "-c", size, "-n", f"{name}@%h"]
        argv += ["--beat"] if self.stage.redis else []
        chaos = f"{armed}:{'STOP' if action == 'CUT' else action}" if armed else ""
        own = {"AGENTOPS_PROCESS_NAME": name, "AGENTOPS_CHAOS": chaos}
        if self.skews:
            own["CHAOS_SKEW_S"] = str(self.skews[len(self.all) % len(self.skews)])
        process = self.stage.spawn(argv, **{**self.env(), **own, **env})
        self.all.append(ChaosWorker(process, name, armed, action, pool))
        return self.all[-1]

    def living(self) -> list[ChaosWorker]:
        return [worker for worker in self.all if not worker.fate]

    def free(self) -> list[ChaosWorker]:
        """Return the started workers with no fault pending."""
        return [worker for worker in self.living() if not worker.armed and not worker.wakes_at and worker.up]

    # --- Faults -------------------------------------------------------------------------------------------------

    def kill(self, worker: ChaosWorker, kind: str = "kill") -> None:
        self._end(worker, signal.SIGKILL, kind)

    def term(self, worker: ChaosWorker) -> None:
        self._end(worker, signal.SIGTERM, "term")

    def _end(self, worker: ChaosWorker, number: signal.Signals, kind: str) -> None:
        if worker.fate or not worker.process.alive:
            return
        self._note(kind)
        worker.fate, worker.wakes_at, worker.ended = kind, 0.0, time.monotonic()
        if number == signal.SIGKILL:
            self.deaths[worker.process.pid] = time.time()
        worker.process.signal(number)
        self._due.append(time.monotonic() + RESTART_S)

    def suspend(self, worker: ChaosWorker) -> None:
        """Suspend the worker for longer than its leases last."""
        if worker.fate or worker.wakes_at or not worker.process.alive:
            return
        self._note("stop")
        worker.process.signal(signal.SIGSTOP)
        worker.wakes_at = time.monotonic() + self.lease_s * 1.75

    def cut(self, name: str = "") -> int:
        """Terminate the database connections of one process, or of all agentops processes; return their number."""
        with psycopg.connect(self._database_url(), autocommit=True) as server:
            ended = server.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND application_name LIKE %s",
                [name or "agentops%"],
            ).fetchone()
        return ended[0] if ended else 0

    def _database_url(self) -> str:
        return self.stage.databases.env(self.stage.name, self.stage.home)["DATABASE_URL"]

    def _note(self, kind: str) -> None:
        if self.busy():
            self.result.fault(kind)

    # --- Supervision --------------------------------------------------------------------------------------------

    def watch(self, *, restart: bool = True) -> None:
        """Check all workers. With `restart`, replace each that has ended."""
        for worker in self.all:
            self._watch(worker)
        now = time.monotonic()
        for due in [due for due in self._due if due <= now]:
            self._due.remove(due)
            if restart:
                self.start()

    def _watch(self, worker: ChaosWorker) -> None:
        if worker.fate:
            return
        code = worker.process.exit_code
        if code is not None:
            self._ended(worker, code)
        elif worker.wakes_at:
            if time.monotonic() >= worker.wakes_at:
                self.woken_at[worker.process.pid] = time.time()
                worker.process.signal(signal.SIGCONT)
                worker.wakes_at = 0.0
        elif worker.armed and not worker.met and self._stands_at_its_point(worker):
            self._met(worker)

    def _stands_at_its_point(self, worker: ChaosWorker) -> bool:
        """Return whether it is suspended at its crash point, or its engine has failed there."""
        if worker.action == "RAISE":
            return any(pid == worker.process.pid for _, pid, _ in self.strikes())
        return worker.action != "KILL" and worker.process.suspended()

    def _ended(self, worker: ChaosWorker, code: int) -> None:
        if (self.mortal or (worker.armed and worker.action == "KILL")) and code == -signal.SIGKILL:
            worker.fate, worker.met = "struck", True
            self._note("kill by a run" if self.mortal else "kill at a point")
            self.deaths[worker.process.pid] = time.time()
        else:
            worker.fate = "ended"
            self.result.wrong("processes", f"{worker.name} ended by itself with {code}\n{worker.process.said(30)}")
        self._due.append(time.monotonic() + RESTART_S)

    def _met(self, worker: ChaosWorker) -> None:
        """Handle a worker that is stopped at its crash point."""
        worker.met = True
        if worker.action == "RAISE":
            self._note("error at a point")
        elif worker.action == "CUT":
            self._note("cut at a point")
            self.cut(worker.name)
            worker.process.signal(signal.SIGCONT)
        else:
            self._note("stop at a point")
            worker.wakes_at = time.monotonic() + self.lease_s * 1.75

    def woken(self) -> bool:
        """Return whether no worker is suspended."""
        return not any(worker.wakes_at for worker in self.all if not worker.fate)

    def strikes(self) -> list[tuple[float, int, str]]:
        """Return the time, process ID and point of each strike."""
        return [(float(at), int(pid), point) for at, pid, kind, point, *_ in self.lines() if kind == "strike"]

    def lines(self) -> list[list[str]]:
        if not self.trace.exists():
            return []
        return [line.split(" ") for line in self.trace.read_text().splitlines() if line.count(" ") >= 3]
