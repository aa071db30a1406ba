"""Each possible fault of a process, a database, a broker or a clock has a test that causes it."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent
CRASH = "processes/crash"
FAULTS = {
    "a worker is killed": f"{CRASH}/test_kill.py::test_a_run_survives_a_kill",
    "workers are killed at random": "browser/processes/test_killed_agent.py::test_a_run_survives_ten_kills_unchanged",
    "a child of a forking worker is killed": f"{CRASH}/test_processes.py::test_a_killed_child_is_replaced",
    "a tool takes all memory": "runs/engine/turns/test_rows_of_steps.py::test_a_tool_that_takes_all_memory_fails",
    "a parent is killed": f"{CRASH}/test_processes.py::test_children_end_with_their_parent",
    "SIGTERM": f"{CRASH}/test_term.py::test_sigterm_finishes_the_model_call_and_releases_the_run",
    "SIGTERM twice": f"{CRASH}/test_processes.py::test_repeated_sigterms_are_harmless",
    "a worker is suspended": f"{CRASH}/test_zombie.py::test_a_fenced_worker_writes_nothing",
    "hints come ten times": f"{CRASH}/test_broker.py::test_a_run_is_claimed_once_for_any_number_of_hints",
    "connections are cut": f"{CRASH}/test_storage.py::test_runs_survive_cut_connections",
    "the database takes no writes": "runs/engine/test_storage_that_fails.py::test_the_step_stops_and_goes_on_when",
    "the disk is full": "runs/engine/test_storage_that_fails.py::test_a_full_disk_is_waited_out",
    "Redis forgets": f"{CRASH}/test_broker.py::test_runs_survive_five_restarts_in_a_row_and_an_emptied_redis",
    "Redis is away": f"{CRASH}/test_broker.py::test_active_runs_continue_without_redis",
    "Redis is away at a click": f"{CRASH}/test_broker.py::test_resume_is_accepted_without_redis",
    "a clock jumps": f"{CRASH}/test_processes.py::test_a_worker_with_a_wrong_clock_takes_no_run_too_early",
    "a tool never answers": "runs/engine/turns/test_late_outputs.py::test_of_a_call_that_nobody_knows_the_outcome_of",
    "a step kills its workers": "runs/engine/test_deaths_and_slices.py::test_a_step_that_kills_three_workers_is_poison",
    "the search index is killed": f"{CRASH}/test_killed_index.py::test_the_index_is_complete_after_a_killed",
    "a connection dies before its use": "processes/outage/test_restarted_server.py::test_a_connection_that_dies_after",
    "a backup is restored": "processes/restore/test_drill.py::",
}


def test_every_fault_has_a_test() -> None:
    for fault, place in FAULTS.items():
        path, _, name = place.partition("::")
        assert f"def {name or 'test_'}" in (TESTS / path).read_text(), fault
