"""Concurrent imports of sessions that share model calls: each call is counted once."""

from __future__ import annotations

import pytest
from django.db import transaction

from runs.external.import_runs import retry_conflicts
from tests.support.factories import make_project
from tests.support.recordings import FIRST, NEW_TIMES, PARENT, SECOND, import_path, rollout, run_of, session, used
from tests.support.timing import at_once

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.every_database]


def test_originals_and_copies_imported_concurrently_are_counted_once() -> None:
    project = make_project("races")
    files = [session(FIRST), session(SECOND), rollout(NEW_TIMES), rollout(PARENT)]

    def import_one(number: int) -> None:
        with transaction.atomic():
            import_path(project, files[number % len(files)])

    at_once(lambda number: retry_conflicts(lambda: import_one(number)), 2 * len(files))

    assert used(project) == (6_600 + 3_200, 220 + 110, 6)
    assert run_of(project, SECOND).forked_from == run_of(project, FIRST)
