"""The product in its two deployments: embedded, one process on SQLite; or web and worker processes on PostgreSQL and
Redis.

Both have one agent that plays a short recording, and no other load.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import payload
from bench.processes import NotStarted, Program, free_port, running, site
from bench.workspace import RESET_PREFIXES, Workspace, redis_url, truncate_tables

MANAGE = Path(__file__).resolve().parent.parent / "manage.py"
#: The project that the embedded mode creates.
PROJECT = "demo"
AGENT = "short"
STEPS = 3
COMMAND_S = 60
USERNAME, PASSWORD = "bench", "correct-horse-battery-staple"
SETTLED_S = 3.0


@dataclass(frozen=True)
class Stack:
    url: str
    programs: tuple[Program, ...]

    def rss_mib(self) -> float:
        return sum(program.rss_mib() for program in self.programs)


@contextmanager
def embedded(workspace: Workspace) -> Iterator[Stack]:
    port = free_port()
    environment = _environment(workspace) | {"AGENTOPS_HOME": str(workspace.folder / "embedded"), "PORT": str(port)}
    definition = workspace.folder / "agent.json"
    definition.write_text(json.dumps(_definition(workspace)))
    # `up` fills only an empty site with the demo, which would run during the measurement. This site is not empty.
    _manage(environment, "migrate", "--verbosity", "0")
    _manage(environment, "project", "create", PROJECT)
    _manage(environment, "agent", "apply", str(definition), "--project", PROJECT)
    output = workspace.folder / "up.log"
    with running([sys.executable, MANAGE, "up"], environment, output, port=port) as program:
        time.sleep(SETTLED_S)
        yield Stack(program.url, (program,))


@contextmanager
def scaled(workspace: Workspace, *, workers: int = 1) -> Iterator[Stack]:
    """Start a web process and workers. The first worker runs the scheduler."""
    environment = _environment(workspace) | {"DATABASE_URL": workspace.url, "REDIS_URL": redis_url()}
    _furnish(workspace)
    port = free_port()
    with ExitStack() as stack:
        web = site(port)
        programs = [stack.enter_context(running(web, environment, workspace.folder / "web.log", port=port))]
        for number in range(workers):
            command = [sys.executable, str(MANAGE), "worker", *(["--beat"] if number == 0 else [])]
            programs.append(
                stack.enter_context(running(command, environment, workspace.folder / f"worker-{number}.log"))
            )
        time.sleep(SETTLED_S)
        yield Stack(programs[0].url, tuple(programs))


def _environment(workspace: Workspace) -> dict[str, str]:
    """Return the default environment, with the variables that the processes need."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(RESET_PREFIXES)}
    required = ("SECRET_KEY", "LOG_LEVEL", "AGENTOPS_FIXTURES", "AGENTOPS_HOME")
    return inherited | {name: os.environ[name] for name in required}


def _definition(workspace: Workspace) -> dict[str, object]:
    payload.write_fixture(workspace.fixtures(), AGENT, payload.steps(STEPS))
    return {"agent_id": AGENT, "provider": "fixture", "model": AGENT, "tools": ["recorded"], "max_steps": STEPS + 1}


def _furnish(workspace: Workspace) -> None:
    """Create a project, an agent and a member in the database of this process."""
    from django.contrib.auth.models import User

    from agentops.accounts.access import SYSTEM
    from agentops.accounts.memberships import create_project
    from runs.actions import agent_definitions

    truncate_tables(workspace)
    agent_definitions.apply(create_project(PROJECT, PROJECT, actor=SYSTEM), _definition(workspace), by="bench")
    User.objects.create_superuser(USERNAME, password=PASSWORD)


def _manage(environment: Mapping[str, str], *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, MANAGE, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it wrote nothing"])[-1]
        raise NotStarted(f"{' '.join(arguments)} ended with exit code {done.returncode}: {said}")
