"""What a second run of the suite, on PostgreSQL, leaves out: only tests that ask no database."""

from __future__ import annotations

import pytest

from tests.support.plugins.run_once import asks_a_database


@pytest.mark.parametrize("fixture", ["db", "transactional_db", "databases", "process_env", "redis_url"])
def test_a_test_with_a_database_or_a_broker_runs_again(fixture: str) -> None:
    assert asks_a_database(frozenset({"tmp_path", fixture}), frozenset())


@pytest.mark.parametrize("mark", ["django_db", "postgres", "redis", "every_database"])
def test_a_test_that_is_marked_so_runs_again(mark: str) -> None:
    assert asks_a_database(frozenset({"tmp_path"}), frozenset({"parametrize", mark}))


def test_a_test_of_plain_functions_runs_once() -> None:
    assert not asks_a_database(frozenset({"tmp_path", "monkeypatch"}), frozenset({"parametrize", "slow"}))
