"""PostgreSQL without pg_trgm: search returns the same results, and a message says how to install it."""

from __future__ import annotations

import io
from importlib import import_module

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from agentops.checks import searches_have_trigrams
from runs.queries.searching import text_index
from tests.support.factories import make_agent, make_project, make_run
from tests.support.run_checks import found, index_all


@pytest.mark.postgres
@pytest.mark.django_db
def test_search_works_without_permission_to_create_the_extension() -> None:
    """Runs both migrations of the index as the owner of the tables, who may not create extensions in this database."""
    names = ("0009_search_index", "0016_search_identifiers_and_times")
    first, second = (import_module(f"runs.migrations.{name}").Migration.operations[0].sql for name in names)
    project = make_project()
    run = make_run(make_agent(project), "a rare needle_in_hay")
    index_all()
    before = [found(project, term) for term in ("needle_in", "ra")]
    assert (text_index.has_trigrams(), searches_have_trigrams(None, ["default"])) == (True, [])
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE; DROP EXTENSION pg_trgm CASCADE")
        cursor.execute("CREATE ROLE needy; GRANT ALL ON SCHEMA public TO needy")
        cursor.execute("ALTER TABLE agent_run_search_entries OWNER TO needy; SET LOCAL ROLE needy")
        for statement in (*first, *second):
            cursor.execute(statement)
        cursor.execute("RESET ROLE")

        assert text_index.has_trigrams() is False
        assert [found(project, term) for term in ("needle_in", "ra")] == before
        assert {result.run_id for result in before[0]} == {run.pk}
        [warning] = searches_have_trigrams(None, ["default"])
        assert (warning.id, "CREATE EXTENSION pg_trgm" in str(warning.hint)) == ("agentops.W008", True)
        with pytest.raises(CommandError, match="CREATE EXTENSION pg_trgm"):
            call_command("search_index", "trigrams")

        cursor.execute("CREATE EXTENSION pg_trgm")
        definition = "SELECT indexdef FROM pg_indexes WHERE indexname = 'search_entry_texts'"
        call_command("search_index", "trigrams", stdout=io.StringIO())
        cursor.execute(definition)
        made_by_command = cursor.fetchone()
        for statement in second:
            cursor.execute(statement)
        cursor.execute(definition)
        assert made_by_command == cursor.fetchone()
    assert [found(project, term) for term in ("needle_in", "ra")] == before
