"""`agentops --help`, `--version` and `completion`: output and start time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from agentops import cli
from agentops.management.commands.completion import SHELLS
from tests.support.command_line import MANAGE, Command

#: A command of Django REST framework that `/api/schema` replaces, and a developer command that writes docs/reference.
NOT_LISTED = {"account_unsetmultipleprimaryemails", "generateschema", "write_reference"}
#: Modules that the overview and a list of runs must not import. Each takes 0.1 s or more. The models of
#: django-celery-beat import Celery.
HEAVY = ("django_eventstream", "pydantic", "pydantic_ai", "redis", "rest_framework.views")


def test_the_overview_lists_every_command() -> None:
    ours = {name for name, app in get_commands().items() if app in ("runs", "agentops", "agentops.accounts")}

    assert set(cli.COMMANDS) == ours - NOT_LISTED
    assert ours | cli.django_commands() | NOT_LISTED == set(get_commands())
    assert {name for name in ours if load_command_class(get_commands()[name], name).help} == ours


@pytest.mark.parametrize("words", [[], ["help"], ["--help"], ["-h"]])
def test_the_overview_needs_no_settings(words: list[str]) -> None:
    told = run(words, SECRET_KEY="bad", DATABASE_URL="bad")

    assert told.index("  up ") < told.index("  run ") < told.index("  agent ") < told.index("\nProjects ")
    assert told.index("\nDjango ") < told.index("changepassword") < told.index("makemigrations")
    lines = told.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_version_prints_the_versions() -> None:
    assert run(["--version"], DATABASE_URL="bad").startswith(f"agentops {version('agentops')} (Django ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    ["agentops.management.commands.key", "runs.management.commands.agent", "runs.management.agent.run_table"],
)
def test_commands_that_need_no_model_library_do_not_import_it(module: str, process_env: dict[str, str]) -> None:
    """Set-up and the command's module, in a separate process. Completion, `--help` and `agent ls` depend on a fast
    start.
    """
    code = f"import sys, django; django.setup(); import {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    env = {name: value for name, value in process_env.items() if name != "REDIS_URL"}
    env["DJANGO_SETTINGS_MODULE"] = "agentops.settings"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_prints_a_valid_script(shell: str, command: Command, tmp_path: Path) -> None:
    script = command("completion", shell)

    for word in ("agentops", "agent", "resume", "dry-run", "check_invariants", "migrate"):
        assert word in script
    file = tmp_path / "completion"
    file.write_text(script)
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(file)], check=True, timeout=60)


def test_bash_completes_commands_options_and_values(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "completion"
    file.write_text(command("completion", "bash"))

    def completed(*words: str) -> set[str]:
        typed = " ".join(f"'{word}'" for word in words)
        tab = f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _shtab_agentops; echo ${{COMPREPLY[*]}}"
        shell = ["bash", "-c", f"source {file}; {tab}"]
        # The exit code is 1 if nothing matches.
        return set(subprocess.run(shell, check=False, capture_output=True, text=True, timeout=60).stdout.split())

    assert completed("agentops", "check_") == {"check_runs", "check_invariants"}
    assert completed("agentops", "run", "res") == {"resume"}
    assert "--dry-run" in completed("agentops", "run", "resume", "--")
    assert completed("agentops", "run", "ls", "--status", "pa") == {"paused"}


def run(words: list[str], **env: str) -> str:
    done = subprocess.run(
        [*MANAGE, *words], env={**os.environ, **env}, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout
