"""The filters of the run list use indexes, even if nothing matches."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from runs.queries.json_lists import RowSpan, Where
from runs.queries.run_columns import RUNS, runs_of, with_label
from tests.support.factories import make_project


def by_source(where: Where) -> Where:
    return where.also("r.source = %s", "import")


def by_label(where: Where) -> Where:
    return with_label(where, "nightly")


@pytest.mark.postgres
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("narrowed", "index"), [(by_source, "run_list_by_source"), (by_label, "run_labels")], ids=["source", "label"]
)
def test_a_filter_without_matches_scans_no_table(narrowed: object, index: str) -> None:
    """G16"""
    where = narrowed(runs_of(make_project().pk))  # type: ignore[operator]
    with CaptureQueriesContext(connection) as asked:
        assert len(RUNS.page(where, RowSpan())) == 0
    with connection.cursor() as cursor:
        # On an empty table, the planner would choose a sequential scan.
        cursor.execute("SET LOCAL enable_seqscan = off")
        for other in ("run_list", "run_list_by_status"):
            cursor.execute(f"DROP INDEX {other}")
        cursor.execute(f"EXPLAIN {asked.captured_queries[-1]['sql']}")
        plan = "\n".join(row[0] for row in cursor.fetchall())

    assert index in plan, plan
