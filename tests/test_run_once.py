"""What a second run of the suite, on PostgreSQL, leaves out: what SQLite has proven."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.plugins.run_once import asks_a_database, without_tests_of_doors
from tests.support.second_pass import is_of_a_door


@pytest.mark.parametrize("fixture", ["db", "transactional_db", "databases", "process_env", "redis_url"])
def test_a_test_with_a_database_or_a_broker_runs_again(fixture: str) -> None:
    assert asks_a_database(frozenset({"tmp_path", fixture}), frozenset())


@pytest.mark.parametrize("mark", ["django_db", "postgres", "redis", "every_database"])
def test_a_test_that_is_marked_so_runs_again(mark: str) -> None:
    assert asks_a_database(frozenset({"tmp_path"}), frozenset({"parametrize", mark}))


def test_a_test_of_plain_functions_runs_once() -> None:
    assert not asks_a_database(frozenset({"tmp_path", "monkeypatch"}), frozenset({"parametrize", "slow"}))


@pytest.mark.parametrize("name", ["admin/test_pages.py", "runs/api/test_lists.py", "test_api_access.py"])
def test_pages_the_api_and_the_admin_are_doors(name: str) -> None:
    assert is_of_a_door(ROOT / "tests" / name)


@pytest.mark.parametrize(
    "name", ["runs/engine/control/test_kill.py", "timeline/test_log.py", "processes/crash/test_kill.py"]
)
def test_the_engine_and_the_log_are_no_doors(name: str) -> None:
    assert not is_of_a_door(ROOT / "tests" / name)


CASES = "import pytest\n{mark}\n@pytest.mark.parametrize('n', [1, 2, 3])\ndef test_it({arguments}): pass\n"


@pytest.fixture
def kept_of(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """How many cases are kept of a door's test with this mark and these arguments."""

    def count(mark: str, arguments: str, *, first_cases: bool = True) -> int:
        monkeypatch.setattr("tests.support.second_pass.ROOT", tmp_path)
        file = tmp_path / "tests" / "test_door.py"
        file.parent.mkdir()
        file.write_text(CASES.format(mark=mark, arguments=arguments))
        cases = pytest.Module.from_parent(request.session, path=file).collect()
        return len(list(without_tests_of_doors(cases, first_cases=first_cases)))  # type: ignore[arg-type]

    return count


@pytest.mark.parametrize("mark", ["", "@pytest.mark.django_db"])
def test_of_a_door_the_first_case_is_enough(mark: str, kept_of: Callable[..., int]) -> None:
    assert kept_of(mark, "n") == 1


@pytest.mark.parametrize("arguments", ["n", "n, tmp_path"])
def test_unless_every_test_runs_none_of_a_door_does(arguments: str, kept_of: Callable[..., int]) -> None:
    assert kept_of("@pytest.mark.django_db", arguments, first_cases=False) == 0


def test_cases_that_send_different_statements_all_run(kept_of: Callable[..., int]) -> None:
    assert kept_of("@pytest.mark.every_database", "n", first_cases=False) == 3


def test_cases_for_each_database_all_run(kept_of: Callable[..., int]) -> None:
    assert kept_of("", "n, engine", first_cases=False) == 2 * 3
