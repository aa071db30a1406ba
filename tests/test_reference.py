"""docs/reference is generated from the code by `manage.py write_reference`, and `make check` verifies it."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from agentops import client, durable
from agentops.accounts.command_base import EXIT_CODES
from agentops.cli import COMMANDS
from agentops.reference import markdown
from agentops.reference.api_pages import api_pages, events_page
from agentops.reference.client_page import client_page
from agentops.reference.durable_page import durable_page
from agentops.reference.operator_pages import commands_page, settings_page
from agentops.settings import env
from runs.api.docs import document
from timeline.events import EVENT_TYPES

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def checkout(settings: Any, tmp_path: Path) -> Path:
    """Create an empty directory for the pages instead of the real docs/reference."""
    settings.BASE_DIR = tmp_path
    directory = tmp_path / "docs" / "reference"
    directory.mkdir(parents=True)
    return directory


def test_it_writes_every_page_and_detects_a_stale_page(checkout: Path) -> None:
    call_command("write_reference", stdout=io.StringIO())
    call_command("write_reference", "--check", stdout=io.StringIO())
    page = checkout / "settings.md"
    page.write_text(page.read_text().replace("`AGENTOPS_LEASE_S` | `20`", "`AGENTOPS_LEASE_S` | `30`"))

    with pytest.raises(CommandError, match=r"stale in docs/reference: settings\.md; run make reference") as refused:
        call_command("write_reference", "--check", stdout=io.StringIO())

    assert refused.value.returncode == 1
    assert "`AGENTOPS_LEASE_S` | `30`" in page.read_text()


def test_it_removes_the_page_of_a_tag_that_no_request_has(checkout: Path) -> None:
    call_command("write_reference", stdout=io.StringIO())
    obsolete = checkout / "api" / "gone.md"
    obsolete.write_text("# HTTP API: gone\n")

    with pytest.raises(CommandError, match=r"stale in docs/reference: api/gone\.md; run make reference"):
        call_command("write_reference", "--check", stdout=io.StringIO())
    call_command("write_reference", stdout=io.StringIO())

    assert not obsolete.exists()


def test_it_fails_outside_a_checkout(checkout: Path) -> None:
    checkout.rmdir()

    with pytest.raises(CommandError, match="this is not a checkout") as refused:
        call_command("write_reference", stdout=io.StringIO())

    assert refused.value.returncode == 5


def test_every_exit_code_has_a_meaning() -> None:
    constant = re.compile(r"^\s*(?:EXIT_[A-Z_]+|exit_code)(?:: [\w\[\]]+)? = ([0-9]+)\b", re.MULTILINE)
    sources = [path for package in ("agentops", "timeline", "runs") for path in (ROOT / package).rglob("*.py")]

    codes = {int(code) for path in sources for code in constant.findall(path.read_text(encoding="utf-8"))}

    assert {4, 75, 78} < codes
    assert codes <= EXIT_CODES.keys()


def test_every_setting_is_on_its_page_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    page = settings_page()

    assert {name for name in env.registered if f"| `{name}` |" in page} == env.registered.keys()
    assert "| `AGENTOPS_LEASE_S` | `20` | a number of seconds from 0.2 to 3600 | " in page
    assert "| `ALLOWED_HOSTS` | `localhost,127.0.0.1,[::1]` | " in page
    assert "| `DEBUG` | `false` | true or false | " in page

    monkeypatch.setitem(env.registered, "AGENTOPS_NEW", env.registered["PORT"])
    with pytest.raises(LookupError, match="AGENTOPS_NEW"):
        settings_page()


def test_every_command_is_on_its_page() -> None:
    page = commands_page()

    assert [line.removeprefix("## agentops ") for line in page.splitlines() if line.startswith("## ")] == [*COMMANDS]
    assert "agentops run start AGENT_ID [OPTIONS]" in page
    assert "| `--limit N` | only the newest N (default: 200) |" in page
    assert "\nagentops check_runs [RUN …] [OPTIONS]\n" in page
    # A command whose subcommand is optional.
    assert "\nagentops retention [OPTIONS]\n" in page
    assert "\nagentops retention hold RUN --reason TEXT [OPTIONS]\n" in page


def test_every_request_is_in_the_index_and_on_the_page_of_its_tag() -> None:
    pages = api_pages()
    links = re.findall(r"^\| \[(`[A-Z]+ [^`]+`)\]\(([^#]+)#[^)]+\) \| .+ \|$", pages["index.md"], re.MULTILINE)
    headings = {
        (line.removeprefix("## "), name)
        for name, text in pages.items()
        for line in text.splitlines()
        if line.startswith("## `")
    }

    assert set(links) == headings
    assert len(links) == sum(len(methods) for methods in json.loads(document())["paths"].values())
    assert ("`GET /agent-runs`", "agent-runs.md") in headings


def test_every_event_is_on_its_page_with_a_description() -> None:
    page = events_page()
    lines = page.splitlines()

    assert {line.strip("# `") for line in lines if line.startswith("### ")} == EVENT_TYPES
    for number, line in enumerate(lines):
        if line.startswith("### "):
            assert lines[number + 2].endswith((".", ")*")), line


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string", "format": "date-time"}, "string (date-time)"),
        ({"type": ["string", "null"]}, "string or null"),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, "integer or number"),
        ({"type": "array", "items": {"$ref": "#/$defs/ToolRequest"}}, "list of ToolRequest"),
        ({"enum": ["llm", "tool"]}, '"llm" or "tool"'),
        ({}, "any"),
    ],
)
def test_schema_types_are_described_in_words(schema: dict[str, object], words: str) -> None:
    assert markdown.type_of(schema) == words


def test_a_pipe_in_a_cell_is_escaped() -> None:
    assert markdown.table(["A"], [["x|y"]]).endswith("| x\\|y |")
    assert markdown.table(["A"], []) == ""


def test_the_client_page_describes_the_public_names() -> None:
    page = client_page()

    missing = [name for name in client.__all__ if f"`{name}`" not in page]
    assert missing == []
    assert "`stop(reason: str = 'stopped')`" in page
    assert "| `seq` | `int` |" in page
    assert "### `Client.approve`" in page
    assert "Initialize self" not in page


def test_the_page_of_durable_functions_describes_the_public_names() -> None:
    page = durable_page()

    missing = [name for name in durable.__all__ if f"`{name}`" not in page]
    assert missing == []
    assert "### `DurableRun.approve`" in page
    assert "| `retries` | `int` | Maximum number of retries after the first attempt. |" in page
    assert "| `StepTimeout` | `StepFailed` |" in page
