"""What is allowed, what the answer tells, the command, and the time that it takes."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from io import StringIO
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from uuid_utils.compat import uuid7

from runs.models import AgentRun
from runs.upkeep.invariants import INVARIANTS, LISTED, UPGRADE, Violation, check, check_within, checker, snapshot
from tests.support.factories import make_log, make_run
from tests.support.upkeep.contradicting_rows import (
    CALL,
    CHOSEN,
    EVENT,
    NEW,
    OF_CALL,
    ONE_MORE_EVENT,
    OUTSIDE,
    RUN,
    STARTED,
    World,
    red,
)
from timeline.models import Event

# --- What is allowed --------------------------------------------------------------------------------------------


def test_it_allows_a_second_start_that_someone_chose(world: World) -> None:
    world.spoil(
        CALL.format("effect = 'at_most_once', starts = 2"),
        STARTED.format("type = 'tool.start', ref_id = %(call)s"),
        CHOSEN.format("retry"),
    )

    assert red() == {"E10"}


def test_it_does_not_take_another_word_for_that_choice(world: World) -> None:
    world.spoil(
        CALL.format("effect = 'at_most_once', starts = 2"),
        STARTED.format("type = 'tool.start', ref_id = %(call)s"),
        CHOSEN.format("approved"),
    )

    assert red() == {"E10", "T3"}


@pytest.mark.parametrize("why", ["safety.block", "approval.resolved"])
def test_it_allows_a_denial_that_is_explained(world: World, why: str) -> None:
    world.spoil(
        CALL.format("status = 'denied', starts = 0"),
        OF_CALL.format("tool.start").replace("'error'", f"'{why}'"),
    )

    assert check() == []


def test_it_lets_late_events_follow_the_end(world: World) -> None:
    late = [ONE_MORE_EVENT[0].replace(" late,", " NOT late,", 2).replace("NOT late,", "late,", 1), ONE_MORE_EVENT[1]]
    world.spoil(*late)

    assert check() == []


def test_it_speaks_only_of_native_runs_where_it_must(world: World) -> None:
    world.spoil(OUTSIDE.format("source = 'import', step_base = 1, max_steps = 1, step_count = step_count + 1"))

    assert check() == []


# --- The answer -------------------------------------------------------------------------------------------------


def test_it_names_the_rows(world: World) -> None:
    world.spoil(CALL.format("call_id = 'other'"), EVENT.format("epoch = 99"))
    run, asked_by = (UUID(str(world.ids[name])) for name in ("run", "asked_by"))

    found = {violation.invariant: violation for violation in check()}

    assert found["M8"].ids == (f"{run}/{asked_by}",)
    assert found["L3"].ids == (f"{run}/event {world.ids['last']}",)
    assert not found["L3"].more


def test_it_looks_at_one_run_alone(world: World) -> None:
    world.spoil(CALL.format("call_id = 'other'"), NEW.format("root_run_id = id"), RUN.format("max_steps = 1"))
    run, new, old = (UUID(str(world.ids[name])) for name in ("run", "new", "old"))

    assert (red(run), red(new), red(old)) == ({"M8", "R2b"}, {"R5"}, set())


def test_it_lists_so_many_and_says_that_there_are_more(db: None) -> None:
    for _ in range(LISTED + 1):
        make_log()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE timeline_log SET last_seq = 1")

    [violation] = check()

    assert (len(violation.ids), violation.more) == (LISTED, True)


@pytest.mark.django_db(transaction=True)
def test_it_reads_one_state_and_keeps_nobody_from_writing() -> None:
    with snapshot():
        before = Event.objects.count()
        writer = threading.Thread(target=make_and_close)
        writer.start()
        writer.join(60)
        assert not writer.is_alive()
        assert Event.objects.count() == before
    assert Event.objects.count() > before


def make_and_close() -> None:
    try:
        make_run()
    finally:
        connection.close()


# --- The command ------------------------------------------------------------------------------------------------


def told(*args: str) -> tuple[str, int]:
    out = StringIO()
    try:
        call_command("check_invariants", *args, stdout=out)
    except CommandError as error:
        return out.getvalue(), error.returncode
    return out.getvalue(), 0


def test_the_command_is_quiet_about_a_good_database(world: World) -> None:
    assert told() == ("All invariants hold.\n", 0)
    assert told("--json") == ("[]\n", 0)


def test_the_command_tells_what_is_broken(world: World) -> None:
    world.spoil(RUN.format("max_steps = 1"))
    run = UUID(str(world.ids["run"]))

    text, code = told("--run", str(run))

    assert code == 1
    assert "R2b violated: a run stays within its own step limit" in text
    assert str(run) in text


def test_the_command_tells_programs_too(world: World) -> None:
    world.spoil(RUN.format("max_steps = 1"))

    text, code = told("--json")

    assert code == 1
    assert [(v["invariant"], v["ids"]) for v in json.loads(text)] == [("R2b", [str(UUID(str(world.ids["run"])))])]


def test_the_command_ends_well_with_warnings(world: World) -> None:
    world.spoil("UPDATE agent_run_commands SET received_at = %(long_ago)s WHERE run_id = %(running)s")

    text, code = told()

    assert (code, "(a warning)" in text) == (0, True)


def test_an_upgrade_that_is_under_way_is_a_warning(world: World) -> None:
    """Rows that a migration has yet to change violate nothing. The same holds for rows of a newer version."""
    world.spoil(RUN.format("step_count = 7"))
    recorder = MigrationRecorder(connection)
    newest = max(name for app, name in recorder.applied_migrations() if app == "runs")
    for change, name in ((recorder.record_unapplied, newest), (recorder.record_applied, "0999_of_a_newer_version")):
        change("runs", name)
        out = StringIO()
        call_command("check_invariants", stdout=out)
        assert f"migrations: {UPGRADE.says} (a warning)" in out.getvalue()
        assert f"runs.{name}" in out.getvalue()
        assert "violated" not in out.getvalue()
        assert check_within(within_s=10.0).unchecked == [invariant.name for invariant in INVARIANTS]
        with pytest.raises(CommandError, match="run `agentops migrate`"):
            call_command("post_restore", "--yes", stdout=StringIO())

    recorder.record_applied("runs", newest)
    recorder.record_unapplied("runs", "0999_of_a_newer_version")
    with pytest.raises(CommandError, match="violated: "):
        call_command("check_invariants", stdout=StringIO())


def test_the_command_knows_what_it_does_not_know(db: None) -> None:
    assert told("--run", str(uuid7()))[1] == 3


def test_a_violation_says_what_should_be_true(world: World) -> None:
    world.spoil(RUN.format("max_steps = 1"))

    assert check() == [
        Violation(
            "R2b",
            (str(UUID(str(world.ids["run"]))),),
            "a run stays within its own step limit and the limit of its lineage",
        )
    ]


# --- Within a time ----------------------------------------------------------------------------------------------


def test_it_names_what_there_was_no_time_for(world: World) -> None:
    world.spoil(RUN.format("max_steps = 1"))

    report = check_within(within_s=0)

    assert (report.violations, report.unchecked) == ([], [invariant.name for invariant in INVARIANTS])
    whole = check_within(within_s=60)
    assert ([violation.invariant for violation in whole.violations], whole.unchecked) == (["R2b"], [])


@pytest.mark.django_db(transaction=True)
def test_a_statement_that_takes_too_long_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the database itself; what was found before it is told, and the connection goes on."""
    make_run(max_steps=3)
    AgentRun.objects.update(resumed_from=None, step_base=1, step_count=1)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n WHERE i < 0"
    broken = next(invariant for invariant in INVARIANTS if invariant.name == "R2b")
    others = [invariant for invariant in INVARIANTS if invariant is not broken]
    # The first to be asked, so that its time is not up before.
    asked = (broken, replace(others[0], sql=endless), *others[1:])
    monkeypatch.setattr(checker, "INVARIANTS", asked)

    report = check_within(within_s=1)

    assert {violation.invariant for violation in report.violations} == {"R2b"}
    assert report.unchecked == [invariant.name for invariant in others]
    assert AgentRun.objects.count() == 1
