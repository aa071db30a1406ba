"""A lane of killed programs: a project with trips, the processes that execute them, and a person who attends to them.

Everything is done in one thread: `look` looks once, and acts. May import the product.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentops.accounts.models import Project
from agentops.client import AgentopsError, Client
from agentops.client.errors import ApiError
from runs.actions import unknown_calls
from runs.lifecycle import transitions
from runs.models import AgentRun, AgentRunToolCall, Approval
from runs.statuses import PauseReason, RunStatus, WaitReason
from tests.chaos.programs import broken, interface, ledger
from tests.chaos.programs.interface import TRIP
from tests.chaos.schedules.program_plan import WAIT, Kill, LanePlan
from tests.chaos.verdict.result import Result
from tests.support.child_processes import ChildProcess, ForkServer
from tests.support.factories import with_key
from tests.support.stage import Stage
from tests.support.timing import is_alive

#: Delay in seconds before a process is replaced.
RESTART_S = 0.2
#: How the site names the waits of the script.
REASONS = {
    interface.ASK: WaitReason.INPUT,
    interface.CHECK_VISA: WaitReason.CHILDREN,
    interface.DEPARTURE: WaitReason.SIGNAL,
}
#: Time limit in seconds for a request of the person. The site may be away.
REQUEST_S = 10.0
#: Resumes of a paused run: afterwards the person gives up.
MOST_RESUMES = 3


@dataclass
class ProgramSite:
    """Shared by the lanes of a schedule: the program, the site and the result."""

    stage: Stage
    host: ForkServer
    url: str
    result: Result
    #: How the program is broken; empty for not at all.
    broken: str = ""


@dataclass
class LaneTrip:
    """A requested trip, its runs, and its kills that are still to come."""

    name: str
    kills: deque[Kill]
    armed: Kill | None = None
    run: AgentRun | None = None
    struck: int = 0

    @property
    def lineage(self) -> list[AgentRun]:
        """The runs that carry out the trip, oldest first."""
        if self.run is None:
            return []
        return list(AgentRun.objects.filter(root_run=self.run.root_run_id).order_by("step_base", "created_at"))


@dataclass
class ProgramLane:
    site: ProgramSite
    plan: LanePlan
    project: Project
    trips: list[LaneTrip] = field(init=False)
    #: How the person has resolved unknown outcomes, by trip and tool.
    resolved: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    resumes: Counter[str] = field(default_factory=Counter)
    _processes: list[ChildProcess] = field(default_factory=list)
    _dead: set[int] = field(default_factory=set)
    #: When processes are due to be started.
    _due: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory = self.site.stage.home / self.project.slug
        self.directory.mkdir()
        self.trips = [LaneTrip(name, deque(self.plan.kills.get(name, ()))) for name in self.plan.trips]
        self._due = [0.0] * self.plan.processes
        self._work_key = self._key("work")
        self._client = Client(self.site.url, self._key("read", "write"), timeout_s=REQUEST_S, retries=0)

    def _key(self, *scopes: str) -> str:
        return with_key(self.project, *scopes)["Authorization"].removeprefix("Bearer ")

    # --- Progress ---

    def look(self) -> bool:
        """Look after the processes, the kills and the runs. Return whether the lane has nothing more to do."""
        self._look_after_processes()
        for trip in self.trips:
            if trip.run is None:
                self._request(trip)
            self._arm(trip)
        unended = list(self.runs.unended())
        self._end_leases(unended)
        for run in unended:
            if run.state in (RunStatus.WAITING, RunStatus.PAUSED) and not self._kills_in_wait(run):
                self._attend(run)
        return not unended and all(trip.run is not None for trip in self.trips)

    @property
    def runs(self) -> Any:
        return AgentRun.objects.filter(project=self.project)

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the ledger."""
        return ledger.read(self.directory)

    def count_lines(self) -> int:
        file = ledger.ledger_file(self.directory)
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def _request(self, trip: LaneTrip) -> None:
        """Start the run of a trip, as soon as a process has registered the agent."""
        with refusable(self.site.result, "agent_not_found"):
            made = self._client.start(TRIP, interface.prompt_of(trip.name), idempotency_key=trip.name)
            trip.run = AgentRun.objects.get(pk=made.id)

    # --- Processes ---

    def _look_after_processes(self) -> None:
        for process in [process for process in self._processes if not is_alive(process.pid)]:
            if (code := process.exit_code) is not None:
                self._processes.remove(process)
                self._dead.add(process.pid)
                self._due.append(time.monotonic() + RESTART_S)
                if code != -signal.SIGKILL:
                    self.site.result.wrong("processes", f"a program ended with {code}\n{process.said(30)}")
        for due in [due for due in self._due if due <= time.monotonic()]:
            self._due.remove(due)
            self._start()

    def _start(self) -> None:
        stage = self.site.stage
        log = stage.home / f"process-{len(stage.workers)}.log"
        env = {
            "AGENTOPS_URL": self.site.url,
            "AGENTOPS_API_KEY": self._work_key,
            "HOME": str(self.directory),
            ledger.DIRECTORY: str(self.directory),
            broken.VARIABLE: self.site.broken,
        }
        pid = self.site.host.ask(log=str(log), env=env)
        self._dead.discard(pid)  # process IDs are reused
        self._processes.append(ChildProcess(self.site.host, pid, log))
        # The stage ends the rest.
        stage.workers.append(self._processes[-1])

    def end(self) -> None:
        """End all processes, as a deployment does. Each must end without a second signal."""
        self._client.close()
        living = [process for process in self._processes if process.alive]
        for process in living:
            process.signal(signal.SIGTERM)
        for process in living:
            code = process.wait(within_s=30, why="a program ends after SIGTERM")
            # A signal that comes before its handler is installed ends the process at once.
            if code not in (0, -signal.SIGTERM):
                self.site.result.wrong("processes", f"a program ended with {code} after SIGTERM\n{process.said(30)}")

    def _end_leases(self, unended: Sequence[AgentRun]) -> None:
        """End the leases of killed processes, as if the time had passed, unless the plan wants to wait for it."""
        if self.plan.waits_for_leases:
            return
        for run in unended:
            pid = (run.lease_owner or "").split(":")[-2:-1]
            if run.state is RunStatus.RUNNING and pid and int(pid[0]) in self._dead:
                transitions.expire_leases(run.lease_owner or "")

    # --- Kills ---

    def _arm(self, trip: LaneTrip) -> None:
        """Order the next kill of a trip, if the one before it has struck."""
        armed = trip.armed
        if armed is not None and not armed.moment.startswith(WAIT):
            if ledger.armed_file(self.directory, armed.trip).exists():
                return
            self._note(trip, armed.moment.split(":")[0] if armed.moment.startswith("model") else "tool")
        if trip.armed is None and trip.kills:
            trip.armed = trip.kills.popleft()
            if not trip.armed.moment.startswith(WAIT):
                ledger.arm(self.directory, trip.armed.trip, trip.armed.moment, trip.armed.after_s)

    def _note(self, trip: LaneTrip, kind: str) -> None:
        self.site.result.fault(f"kill in a {kind}")
        trip.struck += 1
        trip.armed = None

    def _kills_in_wait(self, run: AgentRun) -> bool:
        """Kill the processes of the lane if this is ordered for the wait of a run. Return whether it waits for that."""
        trip = next((each for each in self.trips if each.run is not None and each.run.pk == run.root_run_id), None)
        if trip is None or trip.armed is None or not trip.armed.moment.startswith(WAIT):
            return False
        if run.state is not RunStatus.WAITING or not _waits_for(run, trip.armed.moment.removeprefix(WAIT)):
            return False
        if living := [process for process in self._processes if process.alive]:
            for process in living:
                os.kill(process.pid, signal.SIGKILL)
            self._note(trip, "wait")
        return True

    # --- The person ---

    def _attend(self, run: AgentRun) -> None:
        """End the wait of a run by the API. A request that the site does not answer is repeated later."""
        with refusable(self.site.result, "approval_decided", "not_waiting", "call_not_unknown", "run_not_paused"):
            match run.status, run.status_reason:
                case RunStatus.WAITING, WaitReason.APPROVAL:
                    for request in self._client.approvals(run_id=str(run.pk), kind="approval", state="pending"):
                        self._client.approve(run.pk, request.call_id)
                case RunStatus.WAITING, WaitReason.INPUT:
                    self._client.reply(run.pk, interface.REPLY)
                case RunStatus.WAITING, WaitReason.UNKNOWN_TOOL:
                    self._resolve(run)
                case RunStatus.WAITING, WaitReason.SIGNAL:
                    key = f"departure-{run.pk}"
                    self._client.signal(run.pk, interface.SIGNAL, interface.SIGNAL_PAYLOAD, idempotency_key=key)
                case RunStatus.PAUSED, reason:
                    self._resume(run, reason)

    def _resolve(self, run: AgentRun) -> None:
        """Say what happened to interrupted calls: the ledger knows."""
        for call in unknown_calls.unresolved(run):
            trip, tool = trip_of(run), interface.bare(call.tool_name)
            effects = [line for line in self.lines() if _is_of(line, trip, tool) and line["what"] == "effect"]
            choice = "done" if effects else "retry"
            self._client.resolve_call(run.pk, call.pk, choice, effects[0]["output"] if effects else None)
            self.resolved.setdefault((trip, tool), []).append(choice)

    def _resume(self, run: AgentRun, reason: str) -> None:
        """Resume a paused run. Only a step in which processes died repeatedly may pause a run."""
        if reason != PauseReason.POISON_STEP:
            self.site.result.wrong("pauses", f"{trip_of(run)} is paused ({reason}): {run.error_message[:2000]}")
        if sum(self.resumes.values()) < MOST_RESUMES:
            self._client.resume(run.pk)
            self.resumes[reason] += 1

    def unfinished(self) -> Iterator[str]:
        """Yield the open waits."""
        for trip in self.trips:
            if trip.run is None:
                yield f"{trip.name} was not started"
        for run in self.runs.unended():
            calls = AgentRunToolCall.objects.filter(run=run, result_message=None).values_list("tool_name", "status")
            yield f"{trip_of(run)} is {run.status} ({run.status_reason}) at step {run.step_count}, {list(calls)}"


def trip_of(run: AgentRun) -> str:
    """Return the name of the trip that a run, or the run that it continues, carries out."""
    root = run if run.resumed_from_id is None else AgentRun.objects.get(pk=run.root_run_id)
    return interface.trip_of(str(root.prompt))


def _is_of(line: dict[str, Any], trip: str, step: str) -> bool:
    return (line["trip"], line["step"]) == (trip, step)


def _waits_for(run: AgentRun, wait: str) -> bool:
    if (reason := REASONS.get(wait)) is not None:
        return run.status_reason == reason
    pending = Approval.objects.filter(run=run, state=Approval.State.PENDING).values_list("tool_name", flat=True)
    return run.status_reason == WaitReason.APPROVAL and wait in map(interface.bare, pending)


class refusable:
    """A context manager of requests that may fail: because the site is away, or another request was faster."""

    def __init__(self, result: Result, *codes: str) -> None:
        self._result = result
        self._codes = codes

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, ApiError) and error.code not in self._codes:
            if error.status >= 500 and error.status != 503:
                self._result.wrong("requests", f"the site answers {error.status}: {error}")
            elif error.status < 500 and error.status != 429:
                self._result.wrong("requests", f"a request of the person was refused: {error} ({error.code})")
        return isinstance(error, AgentopsError)


def lane_logs(home: Path, lines: int = 80) -> str:
    """Return the ends of the logs of all processes of a stage."""
    texts = [(path.name, path.read_text(errors="replace")) for path in sorted(home.glob("process-*.log"))]
    return "\n".join(f"--- {name}\n" + "\n".join(text.splitlines()[-lines:]) for name, text in texts)
