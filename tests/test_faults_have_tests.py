"""Each thing that may happen to a process, a database, a broker or a clock has a test in which it really happens."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
CRASH = "processes/crash"
FAULTS = {
    "a worker is killed": f"{CRASH}/test_kill.py::test_it_survives_a_kill",
    "workers are killed at random": "browser/processes/test_killed_agent.py::test_it_ends_as_if_nobody_had_killed_it",
    "a child of a forking worker is killed": f"{CRASH}/test_processes.py::test_a_child_that_is_killed_is_replaced",
    "a tool takes all memory": "runs/engine/turns/test_rows_of_steps.py::test_a_tool_that_takes_all_memory_fails",
    "a parent is killed": f"{CRASH}/test_processes.py::test_children_do_not_outlive_their_parent_as_workers",
    "SIGTERM": f"{CRASH}/test_term.py::test_it_finishes_the_model_call_and_hands_over",
    "SIGTERM twice": f"{CRASH}/test_processes.py::test_more_than_one_sigterm_is_no_harm",
    "a worker is suspended": f"{CRASH}/test_zombie.py::test_it_writes_nothing_after_it_was_taken_over",
    "hints come ten times": f"{CRASH}/test_broker.py::test_it_claims_a_run_once_for_any_number_of_hints",
    "connections are cut": f"{CRASH}/test_storage.py::test_it_survives_cut_connections",
    "the database takes no writes": "runs/engine/test_storage_that_fails.py::test_the_step_stops_and_goes_on_when",
    "the disk is full": "runs/engine/test_storage_that_fails.py::test_a_full_disk_is_waited_out",
    "Redis forgets": f"{CRASH}/test_broker.py::test_it_survives_five_restarts_in_a_row_and_an_emptied_redis",
    "Redis is away": f"{CRASH}/test_broker.py::test_runs_at_work_go_on_without_redis",
    "Redis is away at a click": f"{CRASH}/test_broker.py::test_a_click_on_resume_counts_without_redis",
    "a clock jumps": f"{CRASH}/test_processes.py::test_a_worker_whose_clock_is_wrong_takes_nothing_too_early",
    "a tool never answers": "runs/engine/turns/test_late_outputs.py::test_of_a_call_that_nobody_knows_the_outcome_of",
    "a step kills its workers": "runs/engine/test_deaths_and_slices.py::test_a_step_that_kills_three_workers_is_poison",
    "the search index is killed": f"{CRASH}/test_killed_index.py::test_a_killed_worker_and_a_killed_command_leave",
    "a connection dies before its use": "processes/outage/test_restarted_server.py::test_a_connection_that_dies_after",
    "a backup is restored": "processes/restore/test_drill.py::",
}


def test_every_fault_has_its_test() -> None:
    for fault, place in FAULTS.items():
        path, _, name = place.partition("::")
        assert f"def {name or 'test_'}" in (TESTS / path).read_text(), fault


#: Of sessions, of resumes and of policies: the docstring of a test names each of them.
SCENARIOS = [f"S-{number:03}" for number in (*range(9, 14), *range(101, 116))]


def test_every_scenario_has_its_test() -> None:
    named = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py") if path != Path(__file__).resolve())

    assert [scenario for scenario in SCENARIOS if not re.search(rf'"""[^"]*{scenario}\b', named)] == []
