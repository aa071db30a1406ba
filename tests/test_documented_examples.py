"""Examples in the documentation: agents that can be applied, and commands whose arguments exist."""

from __future__ import annotations

import io
import json
import re
import shlex
import tomllib
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class

from agentops import cli
from agentops.cli import ALIASES

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^ *```(?P<language>\w+)\n(?P<text>.*?)^ *```", re.MULTILINE | re.DOTALL)
#: Up to the end of the command: a comment, a pipe, a redirection, or the end of a substitution.
COMMAND = re.compile(r"(?<![/\w.-])agentops (?P<words>[a-z_]+(?: '[^']*'| \"[^\"]*\"| [^\s#|>)&;\"']+)*)")
#: Default fields for incomplete definitions.
REST = {"agent_id": "example", "provider": "fixture", "model": "claude-code-5c", "tools": ["recorded"]}


def blocks(*languages: str) -> Iterator[tuple[str, str]]:
    for path in PAGES:
        for block in BLOCK.finditer(path.read_text(encoding="utf-8")):
            if block["language"] in languages:
                yield f"{path.relative_to(ROOT)}:{block.start()}", block["text"]


def definitions() -> Iterator[tuple[str, dict[str, Any]]]:
    for place, text in blocks("toml"):
        # Skip packages, and an agent and a flow that tests/processes/embedded/test_own_package.py runs.
        if not any(part in text for part in ("[project", 'provider = "shop_rules"', "flow_id = ")):
            yield place, tomllib.loads(text)
    for place, text in blocks("json"):
        if '"agent_id"' in text and '"provider"' in text:
            yield place, json.loads(text)


def commands() -> Iterator[tuple[str, str]]:
    for place, text in blocks("sh"):
        yield from ((place, found["words"]) for found in COMMAND.finditer(text))


def parse(words: str) -> Namespace | None:
    name, *rest = shlex.split(words)
    name = ALIASES.get(name, name)
    if name not in cli.COMMANDS:
        assert name in cli.django_commands(), f"agentops {name}"
        return None
    return load_command_class(get_commands()[name], name).create_parser("agentops", name).parse_args(rest)


@pytest.mark.django_db
def test_every_agent_can_be_applied(settings: Any, tmp_path: Path) -> None:
    settings.AGENTOPS_TOOL_ROOTS = [str(tmp_path)]
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = True
    settings.AGENTOPS_GATE_COMMANDS = ["run-tests"]
    settings.AGENTOPS_CLAUDE_CLI = "/usr/local/bin/claude"
    file = tmp_path / "agent.json"
    for number, (place, definition) in enumerate(definitions()):
        whole = {**REST, **definition}
        if "root" in whole.get("settings", {}):
            whole["settings"]["root"] = str(tmp_path)
        file.write_text(json.dumps(whole))
        project, out = f"documented-{number}", io.StringIO()
        call_command("project", "create", project, stdout=io.StringIO())
        call_command("agent", "apply", str(file), "--project", project, stdout=out)
        assert out.getvalue().startswith("created"), place


def test_every_command_has_valid_arguments() -> None:
    for place, words in commands():
        try:
            parse(words)
        except CommandError as error:
            pytest.fail(f"{place}: agentops {words}: {error}")


def test_examples_exist() -> None:
    assert len(list(definitions())) > 5
    assert {words.split()[0] for _, words in commands()} >= {"agent", "key", "retention", "backup", "budget"}


def test_an_unknown_argument_is_reported() -> None:
    with pytest.raises(CommandError, match="--after-all"):
        parse("agent tail RUN --after-all")
