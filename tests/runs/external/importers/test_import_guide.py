"""docs/guides/import.md: its example is a working format, and its table lists every format."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentops.accounts.models import Project
from runs.external.import_runs import import_file
from runs.external.importers import formats
from runs.external.importers.base import ImportFile, ImportRefused
from runs.upkeep import invariants, replay_check
from tests.support.engine import added_parts
from tests.support.machine import ROOT

GUIDE = (ROOT / "docs" / "guides" / "import.md").read_text(encoding="utf-8")
LINES = [
    {"who": "user", "text": "Hello"},
    {"who": "parrot", "text": "Hello!", "fly": ["Rio"], "heard": 5},
    {"who": "wings", "text": "arrived"},
    {"who": "parrot", "text": "Rio!"},
]


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example, installed as a package."""
    [(group, entries)] = tomllib.loads(block("toml"))["project"]["entry-points"].items()
    [(name, target)] = entries.items()
    (tmp_path / f"{target.partition(':')[0]}.py").write_text(block("python"), encoding="utf-8")
    metadata = tmp_path / "parrot_importer-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: parrot-importer\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with added_parts():
        yield


def chat(*lines: object) -> ImportFile:
    return ImportFile("chat.json", json.dumps({"program": "parrot", "id": "7", "lines": lines}).encode())


@pytest.mark.django_db
def test_the_example_imports_a_chat(installed: None) -> None:
    project = Project.objects.create(slug="birds", name="Birds")
    file = chat(*LINES)
    importer = formats.find(file)
    assert (importer.name, importer.title) == ("parrot", "chats of Parrot")

    [run] = import_file(project, file, importer, by="test").runs

    run.refresh_from_db()
    assert [one for one in invariants.check(run.pk) if not one.warning_only] == []
    assert replay_check.differences(run.pk) == []
    assert (run.external_id, run.status, run.input_tokens, run.prompt) == ("parrot:7", "completed", 5, "Hello")
    assert list(run.messages.order_by("position").values_list("role", flat=True)) == [
        "user",
        "assistant",
        "tool_result",
        "assistant",
    ]
    assert [(call.tool_name, call.input, call.output) for call in run.tool_calls.all()] == [
        ("fly", {"to": "Rio"}, "arrived")
    ]
    assert import_file(project, file, importer, by="test").events == 0
    with pytest.raises(ImportRefused, match=r"chat\.json: /lines/0/who: nobody is called 'cat'"):
        import_file(project, chat({"who": "cat"}), importer, by="test")


def test_the_table_has_every_included_format() -> None:
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", GUIDE, re.MULTILINE))
    assert {importer.name for importer in formats.BUILTIN} <= listed
