"""Read a log while two processes write to it: the reader gets every seq once, in order, without a gap."""

from __future__ import annotations

import subprocess
import sys
import time

from runs.models import AgentRun
from tests.support.machine import ROOT
from tests.support.stage import Stage
from tests.support.timing import eventually
from timeline import log
from timeline.models import Event, Log

COUNT = 3_000


def test_a_reader_sees_every_event_once_and_in_order(stage: Stage) -> None:
    run = stage.run()
    before = Log.objects.get(pk=run.pk).last_seq
    env = stage.databases.env(stage.name, stage.home) | {"DJANGO_SETTINGS_MODULE": "agentops.settings"}
    began = time.monotonic()
    writers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.programs.writers", "batches", str(run.pk), str(COUNT), name],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    seen, reads = read_along(run, writers)
    told = [writer.communicate(timeout=10) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], told
    new = sum(int(out) for out, _ in told)
    print(f"{2 * COUNT} events offered, {new} new, {reads} reads: {time.monotonic() - began:.1f} s")

    assert seen == before + new == Log.objects.get(pk=run.pk).last_seq
    # Both writers stored events, and some event IDs were repeats.
    assert COUNT < new < 2 * COUNT
    assert list(Event.objects.filter(log=run.pk).order_by("seq").values_list("seq", flat=True)) == [*range(1, seen + 1)]


def read_along(run: AgentRun, writers: list[subprocess.Popen[str]]) -> tuple[int, int]:
    """Follow the log until both writers have ended and all events are read.

    Return the last seq and the number of reads with events.
    """
    state = {"last": 0, "reads": 0}

    def follow() -> bool:
        ended = all(writer.poll() is not None for writer in writers)
        events = log.read(run.pk, after=state["last"])
        if events:
            first = state["last"] + 1
            assert [event.seq for event in events] == list(range(first, first + len(events)))
            state["last"] = events[-1].seq
            state["reads"] += 1
        return ended and not events

    eventually(follow, within_s=100, why="both writers have ended")
    return state["last"], state["reads"]
