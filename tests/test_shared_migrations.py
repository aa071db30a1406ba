"""The database of each xdist worker: see tests/support/suite_database.py."""

from __future__ import annotations

import argparse
from typing import cast

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from tests.support.suite_database import OPTIONS, migrates_once


class Options(argparse.Namespace):
    """The options of a test run, with pytest's interface."""

    def getvalue(self, name: str) -> bool:
        return name in self and bool(getattr(self, name))


def decide(monkeypatch: pytest.MonkeyPatch, workers: str | None, **options: bool) -> bool:
    if workers is None:
        monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    else:
        monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", workers)
    return migrates_once(cast(pytest.Config, Options(**options)))


def test_xdist_workers_share_the_migrations(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decide(monkeypatch, "2")


@pytest.mark.parametrize("workers", [None, "1"])
def test_a_single_process_migrates_its_database(monkeypatch: pytest.MonkeyPatch, workers: str | None) -> None:
    assert not decide(monkeypatch, workers)


@pytest.mark.parametrize("option", OPTIONS)
def test_the_options_of_pytest_django_take_precedence(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    assert not decide(monkeypatch, "4", **{option: True})


@pytest.mark.django_db
def test_the_database_has_all_migrations() -> None:
    executor = MigrationExecutor(connection)

    assert executor.loader.applied_migrations
    assert executor.migration_plan(executor.loader.graph.leaf_nodes()) == []
    assert executor.loader.applied_migrations.keys() == executor.loader.disk_migrations.keys()
