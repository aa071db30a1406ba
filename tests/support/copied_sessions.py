"""Sessions that share model calls, and the usage counted for a project. May import the product."""

from __future__ import annotations

from pathlib import Path

from django.db.models import Sum

from agentops.accounts.models import Project
from runs.models import AgentRun, TurnUsage
from tests.support.imported_runs import check_run
from tests.support.recordings.recorded_files import recording

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
