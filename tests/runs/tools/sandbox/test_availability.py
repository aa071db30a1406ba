"""A machine without sandbox support runs no commands, and tells models, pages and system checks the reason."""

from __future__ import annotations

import html
from collections.abc import Iterator

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.test import Client

from agentops.accounts.models import Role
from runs.actions import agent_definitions
from runs.tools.base import ToolDenied
from runs.tools.sandbox import confinement, switches
from runs.tools.sandbox.shell import SHELL
from runs.tools.sandbox.switches import why_off
from tests.support.factories import make_person, make_project
from tests.support.sandbox import Outside, Sh

REASON = "this machine cannot run commands in a sandbox: the machine does not allow user namespaces: Invalid argument"


@pytest.fixture(autouse=True)
def tried_anew() -> Iterator[None]:
    switches.why_unavailable.cache_clear()
    yield
    switches.why_unavailable.cache_clear()


@pytest.fixture
def refusing_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a kernel without the required namespaces."""
    monkeypatch.setattr(confinement, "NAMESPACES", 1 << 30 | 1)


def test_this_machine_supports_the_sandbox(around: Outside) -> None:
    assert switches.why_unavailable() == ""
    assert why_off(SHELL) == ""
    assert [each for each in run_checks() if each.id == "agentops.W009"] == []


def test_no_command_runs_without_a_sandbox(sh: Sh, around: Outside, refusing_kernel: None) -> None:
    with pytest.raises(ToolDenied) as denied:
        sh("touch done")

    assert str(denied.value) == f"sandbox_unavailable: Nothing was run: {REASON}."
    assert not (around.root / "done").exists()


def test_an_architecture_without_a_syscall_filter_has_no_sandbox(
    sh: Sh, around: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    confinement.filter_program.cache_clear()
    monkeypatch.setattr(confinement.platform, "machine", lambda: "sparc64")
    with pytest.raises(ToolDenied, match="there is no filter of system calls for 'sparc64'"):
        sh("touch done")


@pytest.mark.django_db
def test_system_checks_pages_and_commands_report_the_reason(
    around: Outside, refusing_kernel: None, settings, capsys
) -> None:
    [warning] = [each for each in run_checks() if each.id == "agentops.W009"]
    assert warning.msg == f"The tool 'shell' is off. T{REASON[1:]}."

    project = make_project("alpha")
    admin = Client()
    admin.force_login(make_person(project, Role.ADMIN))
    definition = {
        "agent_id": "builder",
        "provider": "fixture",
        "model": "claude-code-5c",
        "tools": ["shell"],
        "settings": {"root": str(around.root)},
    }
    agent_definitions.apply(project, definition, by="system")
    for path in ("builder", "builder/edit"):
        page = " ".join(html.unescape(admin.get(f"/p/alpha/agents/{path}").content.decode()).split())
        assert f"<strong>Off:</strong> T{REASON[1:]}." in page

    call_command("tools")
    assert f"off: T{REASON[1:]}." in capsys.readouterr().out

    settings.AGENTOPS_SHELL_TOOL = False
    page = html.unescape(admin.get("/p/alpha/agents/builder").content.decode())
    assert "<strong>Off:</strong> AGENTOPS_SHELL_TOOL is not set." in page
    assert [each for each in run_checks() if each.id == "agentops.W009"] == []
