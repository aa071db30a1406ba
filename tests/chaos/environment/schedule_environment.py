"""The state of a schedule while it is played: its runs, clients and workers, and an operator who attends to them.

May import the product. Several people at once resume paused runs and approve calls. The operator resolves unknown
outcomes from the ledger, whose answer is final. Child runs are treated like other runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from django.db import connections

from agentops.accounts.models import Project
from runs.actions import unknown_calls
from runs.actions.unknown_calls import OutcomeChoice
from runs.models import AgentRun, Approval, Attempt
from runs.statuses import RunStatus, WaitReason
from tests.chaos.environment.clients import CUT, EngineClient, HttpClient, RunClient
from tests.chaos.environment.ledger_client import LedgerProcess
from tests.chaos.environment.player_environment import Program
from tests.chaos.environment.workers import ChaosWorkers
from tests.chaos.verdict import lineage_summary
from tests.chaos.verdict.history import History
from tests.chaos.verdict.result import Result
from tests.support.databases import reconnect
from tests.support.factories import with_key
from tests.support.stage import Stage
from tests.support.stream_clients import Follower, Listeners
from tests.support.web_server import WebProcess

#: Number of people who resume or approve at the same time.
RESUMERS = 4
#: Time in seconds for a woken worker to act on a busy machine.
SEEN_S = 10.0


@dataclass
class Lineage:
    """A requested conversation and the runs that carry it out."""

    program: Program
    slug: str
    title: str
    runs: list[AgentRun] = field(default_factory=list)
    stopped: bool = False
    #: For a child run, the lineage that opened it.
    parent: Lineage | None = None

    @property
    def newest(self) -> AgentRun | None:
        return self.runs[-1] if self.runs else None

    @property
    def over(self) -> bool:
        return self.newest is not None and self.newest.state.terminal and self.newest.state is not RunStatus.RESUMED


@dataclass
class ScheduleEnvironment:
    stage: Stage
    ledger: LedgerProcess
    workers: ChaosWorkers
    result: Result
    project: Project
    history: History = field(default_factory=History)
    lineages: list[Lineage] = field(default_factory=list)
    #: IDs of runs that kill their workers.
    harmful: list[UUID] = field(default_factory=list)
    #: Whether the operator leaves paused runs alone.
    away: bool = False
    web: WebProcess | None = None
    listeners: Listeners | None = None
    followers: dict[UUID, list[Follower]] = field(default_factory=dict)
    client: RunClient = field(init=False)
    _settled: dict[UUID, tuple[int, float]] = field(default_factory=dict)
    _acting: dict[UUID, list[threading.Thread]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.client = EngineClient(self.project, self.history)
        self.workers.busy = self.working

    def open_web(self, armed: str = "", **more: str) -> None:
        """Start a web process. From now on, clients use HTTP and followers listen to streams."""
        env = {**self.workers.env(), "AGENTOPS_CHAOS": armed, **more}
        del env["DJANGO_SETTINGS_MODULE"]
        self.web = WebProcess(self.stage, env=env, settings_module=self.workers.settings_module).start()
        self.headers = with_key(self.project, "read", "write")
        self.client = HttpClient(self.web.url, self.project, self.headers, self.history)
        self.listeners = Listeners()

    def add(self, program: Program) -> Lineage:
        """Create an agent for the program. `create` then creates its run."""
        number = len(self.lineages)
        slug = f"run-{number}"
        program.agent(self.project, slug, self.ledger.url)
        self.lineages.append(Lineage(program, slug, f"{slug} of {self.result.name}"[:120]))
        return self.lineages[-1]

    def create(self, lineage: Lineage) -> None:
        self.client.create(lineage.slug, lineage.title)

    # --- The operator -------------------------------------------------------------------------------------------

    def settle(self, *, within_s: float, meanwhile: Callable[[], bool] = lambda: True, restart: bool = True) -> bool:
        """Attend to the runs until all have ended and no worker is suspended.

        `meanwhile` is called repeatedly and returns whether it is done. After `within_s` seconds, record a failure and
        return False.
        """
        until = time.monotonic() + within_s
        while True:
            done = meanwhile()
            self.workers.watch(restart=restart)
            try:
                self.attend()
            except CUT:
                connections.close_all()
            # Suspended workers must wake up first, so that a zombie has its chance to do harm.
            if done and all(each.over for each in self.lineages) and self.workers.woken():
                return True
            if time.monotonic() > until:
                self.result.wrong("liveness", self._unfinished(within_s))
                return False
            time.sleep(0.05)

    def attend(self) -> None:
        for lineage in list(self.lineages):
            self._look(lineage)
            self._adopt(lineage)
            run = lineage.newest
            if run is None:
                self.create(lineage)
            elif run.state is RunStatus.WAITING and run.status_reason == WaitReason.UNKNOWN_TOOL:
                self._answer_for(run)
            elif run.state is RunStatus.WAITING and run.status_reason == WaitReason.APPROVAL:
                self._approve(lineage, run)
            elif run.state is RunStatus.PAUSED and not self.away:
                self._resume(run)

    def _look(self, lineage: Lineage) -> None:
        if lineage.runs:
            lineage.runs = lineage_summary.lineage(lineage.runs[0])
        else:
            lineage.runs = list(AgentRun.objects.filter(title=lineage.title, resumed_from=None))[:1]
        # Child runs have no followers, because the number of streams per key is limited.
        followed = lineage.runs if lineage.parent is None else []
        for run in followed:
            if self.listeners is not None and self.web is not None and run.pk not in self.followers:
                url = f"{self.web.url}/api/projects/{self.project.slug}/agent-runs/{run.pk}/events/stream"
                self.followers[run.pk] = [
                    self.listeners.open(url, self.headers, pause_s=0.2, stubborn=True, stop_at_end=True, by_query=query)
                    for query in (False, True)
                ]

    def _adopt(self, lineage: Lineage) -> None:
        """Start attending to the child runs of a lineage."""
        if not lineage.runs or not lineage.program.helpers:
            return
        known = {each.runs[0].pk for each in self.lineages if each.runs}
        opened = AgentRun.objects.filter(parent_run__root_run=lineage.runs[0].pk, resumed_from=None)
        for run in opened.select_related("agent").exclude(pk__in=known).order_by("pk"):
            slug = run.agent.slug if run.agent is not None else ""
            title = f"{slug} of {lineage.title}"
            self.lineages.append(Lineage(lineage.program.children[slug], slug, title, [run], parent=lineage))

    def _approve(self, lineage: Lineage, run: AgentRun) -> None:
        """Approve as several people at once, unless the approval is meant to expire."""
        approval = Approval.objects.filter(run=run, state=Approval.State.PENDING).first()
        if approval is not None and not lineage.program.expires and not self.away:
            self._at_once(approval.call_id, partial(self.client.approve, run.pk, approval.call_id))

    def _answer_for(self, run: AgentRun) -> None:
        for call in unknown_calls.unresolved(run):
            told = self.ledger.settle(str(call.pk), run.lease_epoch)
            choice = OutcomeChoice.DONE if told["done"] else OutcomeChoice.RETRY
            self.client.resolve(run.pk, call.pk, choice, told.get("output"))

    def _resume(self, run: AgentRun) -> None:
        """Resume as several people at once. A request without an answer is repeated later."""
        self._at_once(run.pk, partial(self.client.resume, run.pk))

    def _at_once(self, about: UUID, act: Callable[[], None]) -> None:
        threads = self._acting.setdefault(about, [])
        if any(thread.is_alive() for thread in threads):
            return
        for _ in range(RESUMERS):
            threads.append(threading.Thread(target=self._one, args=[act], daemon=True))
            threads[-1].start()

    def _one(self, act: Callable[[], None]) -> None:
        try:
            act()
        finally:
            connections.close_all()

    def working(self) -> bool:
        """Return whether a lineage is unfinished."""
        return not all(each.over for each in self.lineages)

    def rest(self) -> None:
        """Wait until all requests of the operator have ended."""
        for threads in self._acting.values():
            for thread in threads:
                thread.join(60)
        reconnect()

    def let_zombies_act(self) -> None:
        """Wait until woken workers have dropped their runs, or have had time to do harm.

        Each must appear in the trace or end as fenced; after that, wait a fixed time for delayed writes.
        """
        until = time.monotonic() + SEEN_S
        while not self._all_seen() and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(2 * float(self.workers.pace["AGENTOPS_RENEW_S"]) + 0.5)

    def _all_seen(self) -> bool:
        passed = {(int(pid), float(at)) for at, pid, *_ in self.workers.lines()}
        fenced = Attempt.objects.filter(end_reason="fenced").values_list("owner", flat=True)
        dropped = {int(owner.rsplit(":", 2)[1]) for owner in fenced}
        return all(
            pid in dropped or any(who == pid and at > woken for who, at in passed)
            for pid, woken in self.workers.woken_at.items()
        )

    def _unfinished(self, within_s: float) -> str:
        stand = [
            f"{each.title} is {run.status} ({run.status_reason}) at step {run.step_count}" if run else each.title
            for each in self.lineages
            if (run := each.newest) is None or not each.over
        ]
        return f"not all is over after {within_s:g} s: {'; '.join(stand) or 'somebody is still suspended'}"

    def close(self) -> None:
        if self.listeners is not None:
            self.listeners.close()
            self.listeners = None
