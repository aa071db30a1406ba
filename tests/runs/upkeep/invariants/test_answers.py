"""Invariants: allowed exceptions, the report, the command, and the time limit."""

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
from runs.upkeep import invariants
from runs.upkeep.invariants import INVARIANTS, MAX_LISTED, UPGRADE, Violation, check, check_within, snapshot
from tests.support.factories import make_log, make_run
from tests.support.upkeep import CALL, CHOSEN, EVENT, NEW, OF_CALL, ONE_MORE_EVENT, OUTSIDE, RUN, STARTED, World, red
from timeline.models import Event

# --- Allowed exceptions -----------------------------------------------------------------------------------------


def test_a_second_start_chosen_by_a_user_is_allowed(world: World) -> None:
    world.spoil(
        CALL.format("effect = 'at_most_once', starts = 2"),
        STARTED.format("type = 'tool.start', ref_id = %(call)s"),
        CHOSEN.format("retry"),
    )

    assert red() == {"E10"}


def test_only_that_choice_allows_a_second_start(world: World) -> None:
    world.spoil(
        CALL.format("effect = 'at_most_once', starts = 2"),
        STARTED.format("type = 'tool.start', ref_id = %(call)s"),
        CHOSEN.format("approved"),
    )

    assert red() == {"E10", "T3"}


@pytest.mark.parametrize("why", ["safety.block", "approval.resolved"])
def test_an_explained_denial_is_allowed(world: World, why: str) -> None:
    world.spoil(
        CALL.format("status = 'denied', starts = 0"),
        OF_CALL.format("tool.start").replace("'error'", f"'{why}'"),
    )

    assert check() == []


def test_late_events_may_follow_the_end(world: World) -> None:
    late = [ONE_MORE_EVENT[0].replace(" late,", " NOT late,", 2).replace("NOT late,", "late,", 1), ONE_MORE_EVENT[1]]
    world.spoil(*late)

    assert check() == []


def test_some_invariants_apply_only_to_native_runs(world: World) -> None:
    world.spoil(OUTSIDE.format("source = 'import', step_base = 1, max_steps = 1, step_count = step_count + 1"))

    assert check() == []


# --- The report -------------------------------------------------------------------------------------------------


def test_the_report_names_the_rows(world: World) -> None:
    world.spoil(CALL.format("call_id = 'other'"), EVENT.format("epoch = 99"))
    run, asked_by = (UUID(str(world.ids[name])) for name in ("run", "asked_by"))

    found = {violation.invariant: violation for violation in check()}

    assert found["M8"].ids == (f"{run}/{asked_by}",)
    assert found["L3"].ids == (f"{run}/event {world.ids['last']}",)
    assert not found["L3"].more


def test_a_single_run_can_be_checked(world: World) -> None:
    world.spoil(CALL.format("call_id = 'other'"), NEW.format("root_run_id = id"), RUN.format("max_steps = 1"))
    run, new, old = (UUID(str(world.ids[name])) for name in ("run", "new", "old"))

    assert (red(run), red(new), red(old)) == ({"M8", "R2b"}, {"R5"}, set())


def test_the_list_of_violations_is_limited_and_says_so(db: None) -> None:
    for _ in range(MAX_LISTED + 1):
        make_log()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE timeline_log SET last_seq = 1")

    [violation] = check()

    assert (len(violation.ids), violation.more) == (MAX_LISTED, True)


@pytest.mark.django_db(transaction=True)
def test_the_check_reads_one_snapshot_and_blocks_no_writer() -> None:
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


def test_the_command_accepts_a_good_database(world: World) -> None:
    assert told() == ("All invariants hold.\n", 0)
    assert told("--json") == ("[]\n", 0)


def test_the_command_prints_violations(world: World) -> None:
    world.spoil(RUN.format("max_steps = 1"))
    run = UUID(str(world.ids["run"]))

    text, code = told("--run", str(run))

    assert code == 1
    assert "R2b violated: a run stays within its own step limit" in text
    assert str(run) in text


def test_the_command_prints_json(world: World) -> None:
    world.spoil(RUN.format("max_steps = 1"))

    text, code = told("--json")

    assert code == 1
    assert [(v["invariant"], v["ids"]) for v in json.loads(text)] == [("R2b", [str(UUID(str(world.ids["run"])))])]


def test_the_command_succeeds_with_warnings(world: World) -> None:
    world.spoil("UPDATE agent_run_commands SET received_at = %(long_ago)s WHERE run_id = %(running)s")

    text, code = told()

    assert (code, "(a warning)" in text) == (0, True)


def test_an_upgrade_in_progress_is_a_warning(world: World) -> None:
    """Rows that a migration has yet to change violate nothing. The same applies to rows of a newer version."""
    world.spoil(RUN.format("step_count = 7"))
    recorder = MigrationRecorder(connection)
    newest = max(name for app, name in recorder.applied_migrations() if app == "runs")
    for change, name in ((recorder.record_unapplied, newest), (recorder.record_applied, "0999_of_a_newer_version")):
        change("runs", name)
        out = StringIO()
        call_command("check_invariants", stdout=out)
        assert f"migrations: {UPGRADE.description} (a warning)" in out.getvalue()
        assert f"runs.{name}" in out.getvalue()
        assert "violated" not in out.getvalue()
        assert check_within(within_s=10.0).unchecked == [invariant.name for invariant in INVARIANTS]
        with pytest.raises(CommandError, match="run `agentops migrate`"):
            call_command("post_restore", "--yes", stdout=StringIO())

    recorder.record_applied("runs", newest)
    recorder.record_unapplied("runs", "0999_of_a_newer_version")
    with pytest.raises(CommandError, match="violated: "):
        call_command("check_invariants", stdout=StringIO())


def test_the_command_refuses_an_unknown_run(db: None) -> None:
    assert told("--run", str(uuid7()))[1] == 3


def test_a_violation_states_the_expected_condition(world: World) -> None:
    world.spoil(RUN.format("max_steps = 1"))

    assert check() == [
        Violation(
            "R2b",
            (str(UUID(str(world.ids["run"]))),),
            "a run stays within its own step limit and the limit of its lineage",
        )
    ]


# --- Time limit -------------------------------------------------------------------------------------------------


def test_invariants_skipped_by_the_time_limit_are_reported(world: World) -> None:
    world.spoil(RUN.format("max_steps = 1"))

    report = check_within(within_s=0)

    assert (report.violations, report.unchecked) == ([], [invariant.name for invariant in INVARIANTS])
    whole = check_within(within_s=60)
    assert ([violation.invariant for violation in whole.violations], whole.unchecked) == (["R2b"], [])


@pytest.mark.django_db(transaction=True)
def test_a_slow_query_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database cancels it; earlier results are reported, and the connection stays usable."""
    make_run(max_steps=3)
    AgentRun.objects.update(resumed_from=None, step_base=1, step_count=1)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n WHERE i < 0"
    broken = next(invariant for invariant in INVARIANTS if invariant.name == "R2b")
    others = [invariant for invariant in INVARIANTS if invariant is not broken]
    # Checked first, so that its time limit has not passed before.
    asked = (broken, replace(others[0], sql=endless), *others[1:])
    monkeypatch.setattr(invariants, "INVARIANTS", asked)

    report = check_within(within_s=1)

    assert {violation.invariant for violation in report.violations} == {"R2b"}
    assert report.unchecked == [invariant.name for invariant in others]
    assert AgentRun.objects.count() == 1
