"""Back up a database in use, lose it and restore it: runs continue, and workers from before the restore are fenced."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from django.db import transaction

from agentops.accounts.models import Role
from runs.lifecycle import transitions
from runs.models import AgentRun
from runs.statuses import RunStatus
from runs.upkeep import invariants, replay_check
from tests.support.factories import make_person, signed_in
from tests.support.run_checks import check, events
from tests.support.stage import CALLS, Stage
from tests.support.stream_clients import Listeners
from tests.support.timing import eventually
from tests.support.upkeep import agentops, back_up, put_back
from tests.support.web_server import WebProcess
from timeline import log
from timeline.log import Entry
from timeline.models import LeaseLost, Log, Source

SLOW = {"chunks": 30, "pause_s": 0.1, "on_unknown_tool": "tell_model"}
#: The old workers keep their leases on a busy machine. The restore ends these leases.
LONG_LEASE = {"AGENTOPS_LEASE_S": "60"}


@pytest.mark.slow
def test_restore_drill(stage: Stage, web_process: Callable[..., WebProcess], listeners: Listeners) -> None:
    """Back up under load, lose, restore and run post_restore; then check fencing, stream resets and completion."""
    busy = [stage.run(CALLS, **SLOW) for _ in range(2)]
    reader = signed_in(make_person(busy[0].project, Role.VIEWER))
    web = web_process()
    url = f"{web.url}/api/projects/crash/agent-runs/{busy[0].pk}/events/stream"
    worker = stage.worker(slots=2, **LONG_LEASE)
    for run in busy:
        stage.reaches(run, RunStatus.RUNNING)
    # No slot is free for it, so the backup has it as a run that was never claimed.
    waiting = stage.run(CALLS, **SLOW)
    follower = listeners.open(url, reader, pause_s=0.1, stubborn=True, stop_at_end=True)
    eventually(lambda: len(follower.ids) > 8, why="the reader sees the work")

    backup = back_up(stage)
    seen_then = follower.ids[-1]

    # The restore loses the following: events, a whole run, and the epoch of a second worker.
    zombie = stage.worker(slots=1, **LONG_LEASE)
    stage.reaches(waiting, RunStatus.RUNNING)
    lost = stage.run()
    eventually(lambda: follower.ids[-1] > seen_then + 8, why="work continues after the backup")
    # Suspended outside a write transaction, which would block the restore.
    stage.suspend(zombie)
    worker.end()
    last_id = follower.last_id
    handed_out = dict(AgentRun.objects.filter(status=RunStatus.RUNNING).values_list("pk", "lease_epoch"))
    assert handed_out == dict.fromkeys([*(run.pk for run in busy), waiting.pk], 1)

    put_back(stage, backup)
    told = json.loads(agentops("post_restore", "--yes", "--json"))

    number = told["incarnation"]
    live = [*busy, waiting]
    assert sorted(told["runs"]) == sorted(str(run.pk) for run in live)
    assert not AgentRun.objects.filter(pk=lost.pk).exists()
    assert agentops("check_invariants").startswith("All invariants hold")
    assert "3 checked, 0 differ" in agentops("check_runs")
    for run in live:
        run.refresh_from_db()
        assert (run.status, run.lease_epoch) == (RunStatus.QUEUED, number)

    finisher = stage.worker(slots=4)
    eventually(lambda: _claimed(waiting, number), why="the fresh worker has claimed it")
    zombie.signal(stage.CONT)
    for run in live:
        with pytest.raises(LeaseLost), transaction.atomic():
            log.append(run.pk, [Entry({}, type="x.test")], source=Source.WORKER, epoch=handed_out[run.pk])
        assert not transitions.renew(run.pk, handed_out[run.pk])

    again = listeners.open(url, reader | {"Last-Event-ID": last_id}, pause_s=60)
    eventually(lambda: again.events("stream-reset"), why="a reader with an old cursor gets a reset")
    for run in live:
        stage.reaches(run, RunStatus.COMPLETED)
        check(run)
        assert replay_check.differences(run.pk) == []
    # No event from the lost period remains: events after the backup have new epochs.
    assert [written_by(run)[0] for run in busy] == [1, 1]
    for run in live:
        assert all(epoch > number for epoch in written_by(run)[run in busy :])

    last = Log.objects.get(pk=busy[0].pk).last_seq
    eventually(lambda: follower.events("end"), why="who was there all the time sees the end")
    assert follower.error is None, follower.error
    resets = [place for place, message in enumerate(follower.messages) if message.event == "stream-reset"]
    assert len(resets) >= 1
    after = [m.id for m in follower.messages[resets[-1] :] if m.event == "message" and m.data is not None]
    assert after == [f"{seq}.{number}" for seq in range(1, last + 1)]
    assert listeners.ask(url.replace(str(busy[0].pk), str(lost.pk)), reader).status == 404

    # The old worker has dropped its runs and can execute new ones.
    finisher.end()
    other = stage.run()
    stage.reaches(other, RunStatus.COMPLETED)
    assert "outside of any rule" not in zombie.said(500) + finisher.said(500)
    assert invariants.check() == []


def written_by(run: AgentRun) -> list[int]:
    """Return the distinct epochs of the run's events, in order."""
    return list(dict.fromkeys(event.epoch for event in events(run) if event.epoch is not None))


def _claimed(run: AgentRun, number: int) -> bool:
    run.refresh_from_db()
    return run.lease_epoch > number
