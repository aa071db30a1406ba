"""`git apply` of a run's patch makes the working tree of the recorded session, as its transcript reports it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentops.accounts.models import Project
from runs.changes.git_patch import patch_portions
from runs.models import AgentRun
from runs.queries.run_changes import changes_of
from tests.support.factories import make_project
from tests.support.recordings import import_path, recording, recordings

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture
def project() -> Project:
    return make_project()


@dataclass
class Reported:
    """The texts of files, as Claude Code's results report them beside the outputs."""

    folder: str = ""
    first: dict[str, str | None] = field(default_factory=dict)
    last: dict[str, str] = field(default_factory=dict)


def results_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        result = entry.get("toolUseResult")
        if isinstance(result, dict) and "originalFile" in result and not entry.get("isSidechain"):
            yield entry["cwd"], result


def reported(path: Path) -> Reported:
    """Return the texts before the first and after the last change of each file, from the transcript alone."""
    state = Reported()
    for folder, result in results_of(path):
        state.folder = state.folder or folder
        name, before = result["filePath"], result["originalFile"]
        state.first.setdefault(name, before)
        state.last[name] = _after(result, before)
    return state


def _after(result: dict[str, Any], before: str | None) -> str:
    if "content" in result:
        return str(result["content"])
    old, new = result["oldString"], result["newString"]
    if not new and not old.endswith("\n") and f"{old}\n" in (before or ""):
        old = f"{old}\n"
    return (before or "").replace(old, new, -1 if result["replaceAll"] else 1)


def git(folder: Path, *arguments: str, text: str = "") -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def apply_patch(run: AgentRun, state: Reported, folder: Path) -> list[str]:
    """Write the files as they were, apply the patch of the run, and check each file. Return the paths in the patch."""
    listing = changes_of(run)
    git(folder, "init", "-q")
    listed = [change for change in listing.files if not change.why_no_patch]
    for change in listed:
        before = state.first[f"{state.folder}/{change.path}"]
        if before is not None:
            (folder / change.path).parent.mkdir(parents=True, exist_ok=True)
            (folder / change.path).write_text(before)
    if listed:
        git(folder, "apply", "-", text="".join(patch_portions(listing.files)))
    for change in listed:
        assert (folder / change.path).read_text() == state.last[f"{state.folder}/{change.path}"], change.path
    return [change.path for change in listed]


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("claude-code/5c-1039ad85f4-0.jsonl", ["go.mod", "mise.toml"]),
        ("claude-code/7e-d4051c8a85-0.jsonl", ["cmd/entire/main.go"]),
        ("claude-code/b0-be9accda39-0.jsonl", ["LICENSE"]),
        ("claude-code/68-e0ff0d6706-0.jsonl", []),
    ],
)
def test_the_patch_makes_the_working_tree(project: Project, tmp_path: Path, name: str, paths: list[str]) -> None:
    path = recording(name)
    [run] = [one for one in import_path(project, path).runs if one.parent_run_id is None]

    assert apply_patch(run, reported(path), tmp_path) == paths


@pytest.mark.slow
def test_the_patches_of_all_recorded_sessions_apply(project: Project, tmp_path: Path) -> None:
    in_patches: list[str] = []
    for path in recordings("claude-code"):
        folder = tmp_path / path.stem
        folder.mkdir()
        for run in import_path(project, path).runs:
            if run.parent_run_id is None:
                in_patches += apply_patch(run, reported(path), folder)
    assert len(in_patches) >= 4
