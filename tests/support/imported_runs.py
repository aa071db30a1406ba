"""Imports files as the command does, and compares the resulting runs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from agentops.accounts.models import Project
from runs.external.import_runs import ImportReport, import_file
from runs.external.importers import formats
from runs.external.importers.base import ImportFile
from runs.models import AgentRun
from runs.upkeep import invariants, replay_check
from timeline.models import Event

TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def import_path(project: Project, path: Path, *, is_strict: bool = False) -> ImportReport:
    """Import a file in the format detected from its content, and check the resulting runs."""
    file = ImportFile.open(path, is_strict=is_strict)
    report = import_file(project, file, formats.find(file), by="command:test")
    for run in report.runs:
        check_run(run)
    return report


def import_content(document: Any, name: str = "", *, is_strict: bool = False) -> list[AgentRun]:
    """Import bytes, or a document as JSON, and return the runs. `name` is the format; by default it is detected."""
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    project, _ = Project.objects.get_or_create(slug="imported-content", defaults={"name": "Imported content"})
    file = ImportFile("file.json", content, is_strict=is_strict)
    runs = import_file(project, file, formats.find(file, name), by="test").runs
    for run in runs:
        run.refresh_from_db()
        check_run(run)
    return runs


def lines_of(*values: Any) -> bytes:
    """Return JSON lines."""
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def check_run(run: AgentRun) -> None:
    """Check that a run keeps all invariants, and that its log agrees with its rows."""
    violations = [one for one in invariants.check(run.pk) if not one.warning_only]
    assert not violations, violations
    assert replay_check.differences(run.pk) == []


def counts(project: Project) -> dict[str, Any]:
    """Return how many rows of each kind a project has."""
    runs = AgentRun.objects.filter(project=project)
    return {
        "runs": runs.count(),
        "messages": sum(run.messages.count() for run in runs),
        "calls": sum(run.tool_calls.count() for run in runs),
        "events": Event.objects.filter(log__project=project).count(),
        "rows": sorted(str(sorted(row.items())) for row in runs.values()),
    }


def content_of(run: AgentRun) -> dict[str, Any]:
    """Return a run's content without the values that differ between two imports: IDs and arrival times."""
    run.refresh_from_db()
    return {
        "messages": [(row.role, _timeless(row.content)) for row in run.messages.order_by("position")],
        "calls": Counter(run.tool_calls.values_list("tool_name", "status", "call_id")),
        "tokens": [getattr(run, name) for name in TOKENS],
        "steps": run.step_count,
        "cost": run.cost_usd,
    }


def tokens_of(run: AgentRun) -> tuple[int, ...]:
    """Return the tokens of a run: input, output, cache read and cache write."""
    run.refresh_from_db()
    return tuple(getattr(run, name) for name in TOKENS)


def _timeless(content: dict[str, Any]) -> str:
    parts = [{name: value for name, value in part.items() if name != "timestamp"} for part in content["parts"]]
    return json.dumps({**content, "parts": parts, "timestamp": None}, sort_keys=True)
