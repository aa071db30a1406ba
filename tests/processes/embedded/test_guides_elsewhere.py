"""The first example of each guide for durable agents, as a new user would follow it.

Only the client's wheel and what the guide installs is in the environment. The site is one of `agentops up`.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.claude_model import ClaudeModel, Content, call, serving
from tests.support.command_line import Site
from tests.support.deployment import CleanEnvironment
from tests.support.machine import ROOT
from tests.support.timing import eventually

pytestmark = pytest.mark.slow
STATUS = "SELECT status, status_reason, result, error_message FROM agent_runs WHERE id = ?"
#: By guide: the result of its run.
RESULTS = {
    "durable": "charged 3 cents",
    "pydantic-ai": "Done: order 17 is late, 500 cents refunded",
    "langgraph": "Your order is late. You get 500 cents back.",
    "openai-agents": "500 cents refunded for order 17",
    "claude-agent-sdk": "Sold.",
}
#: The guides whose example asks for no approval.
WITHOUT_APPROVAL = {"langgraph"}
#: The answers of Claude's model in the guide's example.
SALE: list[Content] = [
    [call("toolu_1", "mcp__shop__price", item="tea")],
    [call("toolu_2", "mcp__shop__charge", cents=500)],
    "Sold.",
]


@dataclass(frozen=True)
class Guide:
    """A page of docs/guides, and its first example: a program, and the commands that install, start and use it."""

    name: str

    @property
    def text(self) -> str:
        return (ROOT / f"docs/guides/{self.name}.md").read_text(encoding="utf-8")

    def line(self, pattern: str) -> str:
        """Return what the pattern's group finds in the first line that it matches."""
        found = re.search(f"^{pattern}$", self.text, re.MULTILINE)
        assert found is not None, f"{self.name}: no line {pattern}"
        return found[1]

    @property
    def program(self) -> str:
        found = re.search(r"^```python\n(.*?)^```", self.text, re.MULTILINE | re.DOTALL)
        assert found is not None
        return found[1]

    def install(self, elsewhere: CleanEnvironment, wheel: Path) -> None:
        """Run the guide's command, with the wheel instead of a checkout, and check what it installed."""
        words = re.sub(r'"?\./agentops/agentops(\[[\w-]+\])?"?', rf'"{wheel}\1"', self.line("pip install (.*)"))
        elsewhere.sh(f"pip install --quiet {words} && pip check")


def started(elsewhere: CleanEnvironment, program: str, **env: str) -> subprocess.Popen[str]:
    """Start a program of a clean environment, with nothing else in its environment variables."""
    words = [str(elsewhere.programs / "python"), program]
    home = {"HOME": str(elsewhere.directory), "PATH": f"{elsewhere.programs}:/usr/bin:/bin"}
    return subprocess.Popen(words, cwd=elsewhere.directory, env=home | env, stderr=subprocess.PIPE, text=True)


def state(site: Site, run: str) -> tuple[Any, ...]:
    [row] = site.rows(STATUS, UUID(run).hex)
    return row


@pytest.mark.parametrize("name", RESULTS)
def test_first_example_of_a_guide(site: Site, client_wheel: Path, tmp_path: Path, name: str) -> None:
    guide, elsewhere = Guide(name), CleanEnvironment.make(tmp_path / "elsewhere")
    guide.install(elsewhere, client_wheel)
    file = guide.line(r"python (\w+\.py)")
    (elsewhere.directory / file).write_text(guide.program, encoding="utf-8")
    site.up()
    key = site.agentops(*shlex.split(guide.line(r"export AGENTOPS_API_KEY=\$\(agentops (key create .*)\)"))).strip()
    # Only Claude Code needs a model: the other examples have one. The SDK of OpenAI would say that it sends no traces.
    with serving(ClaudeModel(SALE)) as model:
        models = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "sk-scripted"}
        models["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
        running = started(elsewhere, file, AGENTOPS_URL=site.url, AGENTOPS_API_KEY=key, **models)
        try:
            run = follow(guide, site, running)
            running.send_signal(signal.SIGTERM)
            errors = running.communicate(timeout=60)[1]
        finally:
            running.kill()
            running.communicate()

    assert state(site, run)[::2] == ("completed", RESULTS[name])
    assert (running.returncode, errors) == (0, "")
    assert site.end() == 0


def follow(guide: Guide, site: Site, running: subprocess.Popen[str]) -> str:
    """Start the guide's run, approve its call, and return the run's ID when it has ended."""
    words = shlex.split(guide.line("agentops (run start .*)"))
    registered = "SELECT 1 FROM runs_agent WHERE slug = ?"
    eventually(lambda: site.rows(registered, words[2]) or running.poll() is not None, why=f"{words[2]} is registered")
    assert running.poll() is None, running.communicate()[1]
    run = site.agentops(*words).split()[0]

    def reaches(*status: str) -> None:
        eventually(lambda: state(site, run)[: len(status)] == status, why=lambda: f"the run is {state(site, run)}")

    if guide.name not in WITHOUT_APPROVAL:
        reaches("waiting", "approval")
        site.agentops("agent", "approve", run)
    reaches("completed")
    return run
