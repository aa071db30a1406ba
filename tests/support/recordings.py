"""Recorded files of other programs, from tests/recordings and, if it exists, ../shared/data, and the runs made of them.

Also ordinary texts without secrets, as agents read and write them: agent_texts.jsonl has a line for each source file,
with its URL, its licence, and lines of its texts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from django.db.models import Sum

from agentops.accounts.models import Project
from runs.external.import_runs import ImportReport, import_file
from runs.external.importers import formats
from runs.external.importers.base import ImportFile
from runs.fixtures.convert import convert_file
from runs.fixtures.format import Fixture
from runs.models import AgentRun, TurnUsage
from runs.upkeep import invariants, replay_check
from tests.support.machine import NO_SHARED, ROOT, SHARED, missing, shared_directory
from timeline.models import Event

OWN = ROOT / "tests" / "recordings"


def recording(name: str) -> Path:
    """Return the file or directory of this name. Skip the test if it is only in ../shared and that is missing."""
    own = OWN / name
    return own if own.exists() else shared_directory() / "data" / name


def recordings(folder: str) -> list[Path]:
    """Return all files of a folder, sorted: from ../shared, or from this repository if ../shared is missing.

    Skip the test if the folder is empty.
    """
    return sorted(path for path in (_place() / folder).rglob("*") if path.is_file()) or missing(NO_SHARED)


def folders() -> set[str]:
    """Return the names of the folders with recordings."""
    return {path.relative_to(_place()).parts[0] for path in _place().glob("*/**/*") if path.is_file()} - {"schemas"}


def _place() -> Path:
    return shared_directory() / "data" if SHARED.is_dir() else OWN


TAU = "tau-bench/gpt-4o-airline.subset.json"
TAU_RECORDS = 17
SESSIONS = [
    "claude-code/04-0b015eb1c2-0.jsonl",
    "claude-code/28-a8bc758709-0.jsonl",
    "claude-code/4c-02af2759b6-0.jsonl",
    "claude-code/51-0c10bf7b7a-0.jsonl",
    "claude-code/5c-1039ad85f4-0.jsonl",
    "claude-code/68-e0ff0d6706-0.jsonl",
    "claude-code/7e-d4051c8a85-0.jsonl",
    "claude-code/89-7eb280e769-13.jsonl",
    "claude-code/ac-3f02a3c337-0.jsonl",
    "claude-code/ad-a8171575ce-0.jsonl",
    "claude-code/b0-be9accda39-0.jsonl",
    "claude-code/b6-f735fbac66-0.jsonl",
    "claude-code/dc-49cb8a2a42-0.jsonl",
    "claude-code-growing/768de5d6.0.jsonl",
    "claude-code-growing/768de5d6.1.jsonl",
    "claude-code-growing/768de5d6.2.jsonl",
    "claude-code-growing/768de5d6.3.jsonl",
]
NAMES = [*SESSIONS, *(f"{TAU}#{index}" for index in range(TAU_RECORDS))]


def path_of(name: str) -> Path:
    """Return the file that holds the recording. Skip the test if it is missing."""
    return recording(name.partition("#")[0])


def fixture_of(name: str) -> Fixture:
    path = path_of(name)
    return _converted(path)[int(name.split("#")[1]) if "#" in name else 0]


@cache
def _converted(path: Path) -> list[Fixture]:
    return [each.fixture for each in convert_file(path)]


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


CLAUDE, CODEX = "public-cases/04-copied-history-counted-twice", "public-cases/06-codex-fork-replay"
#: Sessions of Claude Code: one, and its continuation in the background.
FIRST, SECOND = "a7710b82-ce46-585f-86bf-99d1d5af3d9a", "844e38dc-1da3-5f46-b448-bb0c5a9e60ad"
#: Threads of Codex: one, and its sub-agents.
PARENT, NEW_TIMES, KEPT_TIMES = (
    "55032e7e-438f-5fe4-9433-9162810dd023",
    "4187d1d8-4c17-58b2-9068-88b68b2fb1e7",
    "126916ac-8542-5661-be49-5f6ecfe156a1",
)


def session(name: str) -> Path:
    """Return the file of a session of Claude Code."""
    return recording(f"{CLAUDE}/{name}.jsonl")


def rollout(thread_id: str) -> Path:
    """Return the file of a thread of Codex."""
    return recording(f"{CODEX}/rollout-2026-01-22T16-40-00-{thread_id}.jsonl")


def run_of(project: Project, name: str) -> AgentRun:
    """Return the run with the ID of this session or thread."""
    return AgentRun.objects.get(project=project, external_id__endswith=name)


def used(project: Project) -> tuple[int, int, int]:
    """Return the input tokens, output tokens and model calls of a project, summed over its runs. Check each run."""
    runs = AgentRun.objects.filter(project=project)
    for run in runs:
        check_run(run)
    sums = runs.aggregate(sent=Sum("input_tokens", default=0), said=Sum("output_tokens", default=0))
    return sums["sent"], sums["said"], TurnUsage.objects.filter(run__project=project).count()


def used_by(run: AgentRun) -> tuple[int, int, int]:
    """Return the input tokens, output tokens and model calls of one run."""
    return run.input_tokens, run.output_tokens, run.turn_usages.count()


FOREIGN = Path(__file__).parent / "agent_texts.jsonl"
#: Shorter lines contain no secret, and would only add to the count.
_LEAST = 20
_OWN = ("docs/**/*.md", "agentops/**/*.py", "runs/**/*.py", "timeline/**/*.py", "static/**/*.js", "*.lock", "*.toml")


def own_texts() -> Iterator[str]:
    """Yield the lines of this repository's documentation, code, scripts and lock files."""
    for pattern in _OWN:
        for path in sorted(ROOT.glob(pattern)):
            yield from _long(path.read_text(encoding="utf-8").split("\n"))


def foreign_texts() -> Iterator[str]:
    """Yield lines of transcripts of other projects' agents."""
    for line in FOREIGN.read_text(encoding="utf-8").splitlines():
        yield from json.loads(line)["texts"]


def recorded_texts(directory: Path) -> Iterator[str]:
    """Yield the texts in JSON files below a directory."""
    for path in sorted(directory.rglob("*.json*")):
        text = path.read_text(errors="replace")
        for document in text.splitlines() if path.suffix == ".jsonl" else [text]:
            try:
                yield from _long(_strings(json.loads(document)))
            except ValueError:
                continue


def _strings(document: Any) -> Iterator[str]:
    todo = [document]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            todo.extend(item)
        elif isinstance(item, dict):
            todo.extend(item.values())


def _long(texts: Iterator[str] | list[str]) -> Iterator[str]:
    return (text for text in texts if len(text) > _LEAST)
