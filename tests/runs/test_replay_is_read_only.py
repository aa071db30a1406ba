"""A replay calls nothing and changes nothing, on the page, in the API and on the command line."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from pydantic_ai.messages import ToolCallPart

from agentops.accounts.models import Role
from runs.models import AgentRun
from runs.providers.base import ModelCall
from runs.upkeep.replay_check import differences, flow_differences
from tests.support.factories import drive, make_person, make_project, with_key
from tests.support.flows import make_failed_flow_run
from tests.support.scripted_model import PLAYS
from tests.support.timelines import scripted
from timeline import log

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.every_database, pytest.mark.usefixtures("no_hints")]


def dump() -> bytes:
    """Return every row of every table."""
    tables = sorted(connection.introspection.table_names())
    with connection.cursor() as cursor:
        rows: dict[str, list[Any]] = {}
        for table in tables:
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            rows[table] = sorted(repr(row) for row in cursor.fetchall())
    assert rows["agent_run_events"]
    return repr(rows).encode()


def answer(call: ModelCall) -> Iterator[Any]:
    yield f"Answer {call.number}."
    if call.number == 1:
        yield ToolCallPart("nothing_like_it", {"n": 1}, tool_call_id="call-1")


@pytest.fixture
def run() -> AgentRun:
    """A completed run, whose provider raises from now on."""
    run = drive(scripted(answer))
    assert run.status == "completed"

    def refuse(call: ModelCall) -> Iterator[Any]:
        raise AssertionError("a replay has called the provider")

    PLAYS[run.agent_config["settings"]["play"]] = refuse
    return run


@pytest.mark.slow
def test_a_replay_calls_nothing_and_changes_nothing(run: AgentRun) -> None:
    page, program = Client(), Client(headers=with_key(run.project))
    page.force_login(make_person(run.project, Role.OPERATOR))
    api = f"/api/projects/{run.project.slug}/agent-runs/{run.pk}"
    assert program.get(f"{api}/replay").status_code == 200  # store the first use of the key now
    last = log.read(run.pk, limit=1000)[-1].seq
    before = dump()

    for seq in range(1, last + 1):
        assert page.get(f"/runs/{run.pk}/replay?seq={seq}").status_code == 200
        assert page.get(f"/runs/{run.pk}/replay/frame?seq={seq}").status_code == 200
        assert program.get(f"{api}/snapshot?seq={seq}").status_code == 200
        assert program.get(f"{api}/replay?afterSeq={seq - 1}&limit=5").status_code == 200
    call_command("replay", str(run.pk), "--at-once", "--json", stdout=io.StringIO())

    assert dump() == before
    assert differences(run.pk) == []


@pytest.mark.slow
def test_a_replay_of_a_flow_changes_nothing(transactional_db: None) -> None:
    project = make_project()
    flow_run = make_failed_flow_run(project)
    page, program = Client(), Client(headers=with_key(project))
    page.force_login(make_person(project, Role.OPERATOR))
    api = f"/api/projects/{project.slug}/flow-runs/{flow_run.pk}/replay"
    assert program.get(api).status_code == 200
    last = log.read(flow_run.pk, limit=1000)[-1].seq
    before = dump()

    for seq in range(1, last + 1):
        assert page.get(f"/flow-runs/{flow_run.pk}/replay?seq={seq}").status_code == 200
        assert page.get(f"/flow-runs/{flow_run.pk}/replay/frame?seq={seq}").status_code == 200
        assert program.get(f"{api}?afterSeq={seq - 1}&limit=5").status_code == 200
    call_command("replay", str(flow_run.pk), "--at-once", "--json", stdout=io.StringIO())

    assert dump() == before
    assert flow_differences(flow_run.pk) == []
