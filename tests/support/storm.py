"""A storm of posters with a neighbour and a killer, on the database of a stage."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from django.db import connection

from runs.models import AgentRun
from runs.upkeep import invariants, replay_check
from tests.support.factories import make_project, with_key
from tests.support.ingest_storm import Neighbour, Order, Timings
from tests.support.machine import ROOT
from tests.support.project_rows import started
from tests.support.stage import Stage
from tests.support.web_server import WebProcess
from timeline.models import Event

#: Seconds until a new process has loaded its modules and connections are open again.
WARM_S = 1.0


@dataclass
class Outcome:
    """The result of a storm."""

    counts: dict[str, int]
    #: Event ID → sequence number, as acknowledged to the posters.
    stored: dict[str, int]
    wrong: list[str]
    idle: dict[str, Timings]
    loaded: dict[str, Timings]
    #: From the kill of a process, or of the database, until `WARM_S` after its restart.
    outages: list[tuple[float, float]]

    def ratio(self, kind: str, percentile: int) -> float:
        """Return the ratio of a duration's percentile under load to that without load, outside outages."""
        calm = self.loaded[kind].without(self.outages)
        return calm.percentile(percentile) / max(self.idle[kind].percentile(percentile), 1e-9)

    def report(self) -> str:
        lines = [f"{len(self.outages)} kills of a web process or of the database; {self.counts}"]
        for kind, idle in self.idle.items():
            loaded = self.loaded[kind]
            told = [
                f"p{p} {idle.percentile(p) * 1000:.1f} ms idle, {loaded.percentile(p) * 1000:.1f} ms under load,"
                f" {self.ratio(kind, p):.1f} times as long while nothing is down"
                for p in (50, 95)
            ]
            lines.append(f"{kind} of another project: {'; '.join(told)}; {loaded.failed} without an answer")
        return "\n".join(lines)


@dataclass
class Storm:
    """The parameters of a storm."""

    stage: Stage
    posters: int
    seconds: float
    size: int = 10
    pause_s: float = 0.0
    idle_s: float = 5.0
    #: Seconds between two kills of a web process; 0 disables them.
    kill_every_s: float = 5.0
    #: Ends all connections of the database, and may restart its server.
    restart_database: Callable[[], None] | None = None
    #: Number of database restarts.
    restarts: int = 0
    _outages: list[tuple[float, float]] = field(default_factory=list)

    def play(self) -> Outcome:
        busy, quiet = make_project("busy"), make_project("quiet")
        # Another test covers rate limits.
        free = {"AGENTOPS_RATE_RUN_EVENTS": "0", "AGENTOPS_RATE_INGEST": "0", "AGENTOPS_RATE_ADDRESS": "0"}
        free |= {"AGENTOPS_RATE_KEY": "0"}
        webs = [WebProcess(self.stage, f"agentops-web-{n}", free).start() for n in (1, 2)]
        ports = [web.port for web in webs]
        run, own = started(busy, "stormy"), started(quiet, "quiet")
        headers = with_key(quiet, "ingest", "read")
        neighbour = Neighbour(ports, headers, f"/api/projects/quiet/agent-runs/{own.pk}")
        with neighbour.measuring():
            time.sleep(1)
        with neighbour.measuring() as idle:
            time.sleep(self.idle_s)
        order = Order(
            ports,
            with_key(busy, "ingest")["Authorization"],
            "stormy",
            self.posters,
            self.size,
            self.seconds,
            self.pause_s,
        )
        with neighbour.measuring() as loaded:
            told = self._storm(order, webs)
        outcome = Outcome(told["counts"], told["stored"], told["wrong"], idle, loaded, self._outages)
        # This process's connection is lost after a restart.
        connection.close()
        judge(outcome, run, own, neighbour.sent, self.size)
        return outcome

    def _storm(self, order: Order, webs: list[WebProcess]) -> dict[str, Any]:
        posters = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ingest_storm", "posters"],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        done = threading.Event()
        killer = threading.Thread(target=self._kill, args=[webs, done])
        killer.start()
        try:
            out, _ = posters.communicate(json.dumps(asdict(order)), timeout=self.seconds + 90)
        finally:
            done.set()
            killer.join()
            posters.kill()
        return dict(json.loads(out))

    def _kill(self, webs: list[WebProcess], done: threading.Event) -> None:
        dice = random.Random(7)
        until = time.monotonic() + self.seconds
        # All faults occur while the posters run; database restarts are spread evenly.
        restarts = [until - self.seconds * (self.restarts - n) / (self.restarts + 1) for n in range(self.restarts)]
        while not done.wait(self.kill_every_s or 1.0) and time.monotonic() < until - 1:
            began = time.monotonic()
            if restarts and began >= restarts[0] and self.restart_database is not None:
                restarts.pop(0)
                self.restart_database()
            elif self.kill_every_s:
                web = dice.choice(webs)
                web.kill()
                web.start()
            else:
                continue
            self._outages.append((began, time.monotonic() + WARM_S))


def judge(outcome: Outcome, run: AgentRun, own: AgentRun, sent: list[str], size: int) -> None:
    """Check that every event is stored once, numbered 1..n as acknowledged, and that the rows agree with the log."""
    assert outcome.wrong == []
    rows = dict(Event.objects.filter(log=run.pk).exclude(event_id=None).values_list("event_id", "seq"))
    assert len(outcome.stored) == outcome.counts["batches"] * size
    assert {event_id: rows.get(event_id) for event_id in outcome.stored} == outcome.stored
    assert rows.keys() == outcome.stored.keys()
    for one in (run, own):
        seqs = list(Event.objects.filter(log=one.pk).order_by("seq").values_list("seq", flat=True))
        assert seqs == [*range(1, len(seqs) + 1)]
        one.log.refresh_from_db()
        assert one.log.last_seq == len(seqs)
        assert [fault for fault in invariants.check(one.pk) if not fault.warning_only] == []
        assert replay_check.differences(one.pk) == []
    batches = outcome.counts["batches"]
    assert (run.messages.count(), run.tool_calls.count()) == (2 * batches, batches)
    stored = set(Event.objects.filter(log=own.pk, type="x.note").values_list("event_id", flat=True))
    assert set(sent) <= stored
