"""Each pass of the suite leaves out the tests that another pass covers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.machine import ROOT
from tests.support.second_pass import (
    asks_a_database,
    is_of_a_door,
    without_crash_tests,
    without_tests_of_doors,
    without_what_postgres_proves,
)


def test_a_test_with_a_database_or_a_broker_runs_in_both_passes() -> None:
    for fixture in ("db", "transactional_db", "databases", "process_env", "redis_url"):
        assert asks_a_database(frozenset({"tmp_path", fixture}), frozenset()), fixture
    for mark in ("django_db", "postgres", "redis", "every_database"):
        assert asks_a_database(frozenset({"tmp_path"}), frozenset({"parametrize", mark})), mark
    assert not asks_a_database(frozenset({"tmp_path", "monkeypatch"}), frozenset({"parametrize", "slow"}))


def test_pages_api_and_admin_are_endpoints_and_engine_and_log_are_not() -> None:
    for name in ("admin/test_pages.py", "runs/api/test_lists.py", "test_api_access.py"):
        assert is_of_a_door(ROOT / "tests" / name), name
    for name in ("runs/engine/control/test_kill.py", "timeline/test_log.py", "processes/crash/test_kill.py"):
        assert not is_of_a_door(ROOT / "tests" / name), name


CASES = "import pytest\n{mark}\n@pytest.mark.parametrize('n', [1, 2, 3])\ndef test_it({arguments}): pass\n"


@pytest.fixture
def cases_of(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Collect the cases of a test with the given mark, arguments and file name."""

    def collect(mark: str, arguments: str, name: str = "test_door.py") -> Any:
        monkeypatch.setattr("tests.support.second_pass.ROOT", tmp_path)
        file = tmp_path / "tests" / name
        file.parent.mkdir(parents=True)
        file.write_text(CASES.format(mark=mark, arguments=arguments))
        return pytest.Module.from_parent(request.session, path=file).collect()

    return collect


@pytest.fixture
def kept_of(cases_of: Callable[..., Any]) -> Callable[..., int]:
    """Count the cases that the PostgreSQL pass keeps."""

    def count(mark: str, arguments: str, *, first_cases: bool = True) -> int:
        return len(list(without_tests_of_doors(cases_of(mark, arguments), first_cases=first_cases)))

    return count


@pytest.mark.parametrize("mark", ["", "@pytest.mark.django_db"])
def test_an_endpoint_test_runs_its_first_case_only(mark: str, kept_of: Callable[..., int]) -> None:
    assert kept_of(mark, "n") == 1


@pytest.mark.parametrize("arguments", ["n", "n, tmp_path"])
def test_endpoint_tests_are_left_out_if_not_every_test_runs(arguments: str, kept_of: Callable[..., int]) -> None:
    assert kept_of("@pytest.mark.django_db", arguments, first_cases=False) == 0


def test_cases_with_different_statements_all_run(kept_of: Callable[..., int]) -> None:
    assert kept_of("@pytest.mark.every_database", "n", first_cases=False) == 3


def test_cases_for_each_database_all_run(kept_of: Callable[..., int]) -> None:
    assert kept_of("", "n, engine", first_cases=False) == 2 * 3


def test_the_sqlite_pass_runs_crash_tests_that_are_marked(cases_of: Callable[..., Any]) -> None:
    cases = cases_of("@pytest.mark.every_database", "n, engine")
    assert [item.name for item in without_crash_tests(cases)] == [f"test_it[sqlite-{n}]" for n in (1, 2, 3)]


def test_the_sqlite_pass_leaves_out_other_crash_tests(cases_of: Callable[..., Any]) -> None:
    assert list(without_crash_tests(cases_of("", "n, engine"))) == []


def test_the_sqlite_pass_keeps_tests_without_cases_for_each_database(cases_of: Callable[..., Any]) -> None:
    assert len(list(without_crash_tests(cases_of("", "n")))) == 3


IN_THE_ENGINE = "runs/engine/turns/test_turns.py"


@pytest.mark.parametrize(
    ("mark", "name", "kept"),
    [
        ("@pytest.mark.django_db", IN_THE_ENGINE, 0),
        ("@pytest.mark.django_db\n@pytest.mark.every_database", IN_THE_ENGINE, 3),
        ("", IN_THE_ENGINE, 3),
        ("@pytest.mark.django_db", "runs/engine/test_takeover.py", 3),
    ],
)
def test_engine_tests_run_in_the_postgres_pass_only(
    mark: str, name: str, kept: int, cases_of: Callable[..., Any]
) -> None:
    assert len(list(without_what_postgres_proves(cases_of(mark, "n", name)))) == kept
