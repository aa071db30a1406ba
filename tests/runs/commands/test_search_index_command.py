"""`agentops search_index`: the state of the search index, and rebuilding it."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from runs.models import SearchEntry
from tests.support.factories import make_agent, make_project, make_run
from tests.support.run_checks import index_all, runs_found


def command(*words: str) -> str:
    out = io.StringIO()
    call_command("search_index", *words, stdout=out)
    return out.getvalue()


def answer(*words: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(command(*words, "--json"))
    return read


def test_the_index_can_be_inspected_and_rebuilt(db: None) -> None:
    project = make_project()
    run = make_run(make_agent(project), "needle")
    index_all()
    count = SearchEntry.objects.count()
    assert command("status") == f"{count} entries, up to date\n"
    assert answer("status") == {"entries": count, "lag_s": 0, "indexing_again": False}

    SearchEntry.objects.filter(log=run.pk).delete()
    assert answer("run", str(run.pk)) == {"id": str(run.pk), "entries": count}
    assert run.pk in runs_found(project, "needle")
    assert answer("all") == {"deleted": count}
    assert runs_found(project, "needle") == []
    index_all()
    assert run.pk in runs_found(project, "needle")
    with pytest.raises(CommandError, match="run not found"):
        command("run", "01a1f86c")
