"""`agentops replay`: print the stored events at their recorded pace, without side effects."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import transaction
from django.test import Client

from runs.models import AgentRun
from tests.support.command_line import Command
from tests.support.factories import drive, make_project, with_key
from tests.support.flows import make_failed_flow_run
from timeline import log
from timeline.log import Entry
from timeline.models import Source

MakeRun = Callable[..., AgentRun]


def test_replay_prints_every_event(make_run: MakeRun, command: Command) -> None:
    run = drive(make_run())
    lines = [line.split("\t") for line in command("replay", str(run.pk), "--at-once").splitlines()]

    assert [int(cells[0]) for cells in lines] == [event.seq for event in log.read(run.pk)]
    assert lines[-1][3] == "run.completed"
    assert lines[-1][5].startswith("completed, ")
    assert {len(cells) for cells in lines} == {6}


def test_json_output_equals_the_api(make_run: MakeRun, command: Command) -> None:
    run = drive(make_run())
    lines = [json.loads(line) for line in command("replay", str(run.pk)[:13], "--at-once", "--json").splitlines()]

    assert [line["seq"] for line in lines] == [line["state"]["seq"] for line in lines]
    assert [line["type"] for line in lines] == [event.type for event in log.read(run.pk)]
    assert lines[-1]["state"]["status"] == "completed"


def test_a_range_has_the_same_states_as_the_whole(make_run: MakeRun, command: Command) -> None:
    run = drive(make_run())
    whole = command("replay", str(run.pk), "--at-once").splitlines()

    assert command("replay", str(run.pk), "--at-once", "--from", "3", "--to", "6").splitlines() == whole[2:6]
    assert command("replay", str(run.pk), "--at-once", "--from", "5", "--to", "9999").splitlines() == whole[4:]
    assert command("replay", str(run.pk), "--at-once", "--from", "9999") == ""


def test_a_flow_run_is_replayed_with_its_nodes(command: Command, transactional_db: None) -> None:
    project = make_project()
    flow_run = make_failed_flow_run(project)
    lines = [line.split("\t") for line in command("replay", str(flow_run.pk), "--at-once").splitlines()]
    as_json = [json.loads(line) for line in command("replay", str(flow_run.pk), "--at-once", "--json").splitlines()]
    program = Client(headers=with_key(project))

    events = log.read(flow_run.pk)
    assert [int(cells[0]) for cells in lines] == [event.seq for event in events]
    assert lines[0][5] == "queued, 0 nodes done, running: none"
    assert lines[-1][5] == "failed, 2 nodes done, running: none"
    running = next(cells for cells in lines if cells[3] == "node.started")
    assert running[5] == "running, 0 nodes done, running: a"
    assert as_json == program.get(f"/api/projects/{project.slug}/flow-runs/{flow_run.pk}/replay").json()["results"]
    part = command("replay", str(flow_run.pk), "--at-once", "--from", "4", "--to", "6").splitlines()
    assert ["\t".join(cells) for cells in lines[3:6]] == part


def told_at(run: AgentRun, *seconds: float) -> None:
    start = log.read(run.pk)[-1].ts
    entries = [Entry({"at": s}, type="x.test", ts=start + timedelta(seconds=s)) for s in seconds]
    with transaction.atomic():
        log.append(run.pk, entries, source=Source.INGEST)


def test_replay_keeps_the_recorded_pace_and_shortens_long_pauses(make_run: MakeRun) -> None:
    run = make_run()
    told_at(run, 1.6, 1.6, 3600)
    out, err = io.StringIO(), io.StringIO()
    started = time.monotonic()
    call_command("replay", str(run.pk), "--speed", "32", stdout=out, stderr=err)
    took = time.monotonic() - started

    assert len(out.getvalue().splitlines()) == len(log.read(run.pk))
    assert 1.6 / 32 + 5 / 32 <= took < 30
    assert err.getvalue() == "agentops: 1 pause of more than 5 s was shortened to 5 s\n"


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["--speed", "33"], "--speed must be 1 to 32, not 33"),
        (["--speed", "0"], "--speed must be 1 to 32, not 0"),
        (["--from", "5", "--to", "4"], "--to 4 is before --from 5"),
    ],
)
def test_invalid_options_are_refused(make_run: MakeRun, refused, words: list[str], about: str) -> None:
    assert refused("replay", str(make_run().pk), *words) == (2, about)


def test_an_unknown_run_exits_with_3(db: None, refused) -> None:
    assert refused("replay", "0123456789")[0] == 3
