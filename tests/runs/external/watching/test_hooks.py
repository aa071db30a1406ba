"""The hooks of Claude Code: their events for a session, and their installation."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client

from agentops.accounts.command_base import operator
from agentops.accounts.models import ApiKey, Project
from runs.external.claude_code_hooks import BadSettings, HookFiles, install
from runs.models import AgentRun
from tests.support.factories import make_project, with_key
from tests.support.machine import missing
from tests.support.recordings import check_run, import_path, recording
from timeline.models import Event

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SESSION = recording("claude-code/68-e0ff0d6706-0.jsonl")
TASK = {"tool_name": "Task", "tool_input": {"subagent_type": "Explore", "description": "find it"}}
#: Each hook in turn, and the status and the reason of the session after it.
TOLD: list[tuple[dict[str, Any], str, str]] = [
    ({"hook_event_name": "UserPromptSubmit", "prompt": "go"}, "running", ""),
    ({"hook_event_name": "PreToolUse", "tool_name": "Bash"}, "running", ""),
    ({"hook_event_name": "Notification", "notification_type": "permission_prompt"}, "waiting", "approval"),
    ({"hook_event_name": "Notification", "message": "Claude needs your permission to use Bash"}, "waiting", "approval"),
    ({"hook_event_name": "PostToolUse", "tool_name": "Bash"}, "running", ""),
    ({"hook_event_name": "PreToolUse", **TASK}, "running", ""),
    ({"hook_event_name": "SubagentStop", "agent_type": "Explore"}, "running", ""),
    ({"hook_event_name": "Notification", "notification_type": "auth_success"}, "running", ""),
    ({"hook_event_name": "Notification", "message": "Claude is waiting for your input"}, "waiting", "input"),
    ({"hook_event_name": "SessionStart"}, "waiting", "input"),
    ({"hook_event_name": "UserPromptSubmit"}, "running", ""),
    ({"hook_event_name": "Stop"}, "waiting", "input"),
    ({"hook_event_name": 7, "message": []}, "waiting", "input"),
]


def tell(project: Project, document: Any) -> Any:
    return Client().post(
        "/api/internal/agent-hooks/claude-code",
        json.dumps(document),
        content_type="application/json",
        headers=with_key(project, "ingest"),
    )


@pytest.mark.django_db
def test_hooks_update_the_status_of_a_session(tmp_path: Path) -> None:
    project = make_project()
    growing = tmp_path / "session.jsonl"
    lines = SESSION.read_bytes().splitlines(keepends=True)
    growing.write_bytes(b"".join(lines[:-4]))
    [run] = import_path(project, growing).runs
    session = str(run.external_id).partition(":")[2]
    events = Event.objects.filter(log=run.pk)
    for document, status, reason in TOLD:
        before = events.count()
        answer = tell(project, {"session_id": session, "cwd": "/", "future": [1], **document})
        assert answer.status_code == 200
        assert answer.json() == {"stored": events.count() > before}
        run.refresh_from_db()
        assert (run.status, run.status_reason) == (status, reason), document
    notes = list(events.filter(type__startswith="x.").order_by("seq").values_list("payload", flat=True))
    assert [note["message"] for note in notes] == [
        "Sub-agent started: Explore (find it)",
        "Sub-agent stopped: Explore",
    ]
    # The last lines of the file are read after the hook has reported that the session waits.
    growing.write_bytes(b"".join(lines))
    before = events.filter(type="run.phase").count()
    import_path(project, growing)
    assert events.filter(type="run.phase").count() == before
    check_run(run)


@pytest.mark.django_db
def test_what_is_unknown_is_dropped() -> None:
    project = make_project()
    for document in (
        {"session_id": "unknown", "hook_event_name": "Stop"},
        {"session_id": "\x00" * 10, "hook_event_name": "Stop"},
        {"session_id": "a" * 1_000, "hook_event_name": "Stop"},
        {"hook_event_name": "Stop"},
        {},
    ):
        answer = tell(project, document)
        assert (answer.status_code, answer.json()) == (200, {"stored": False})
    assert tell(project, []).status_code == 400
    assert not AgentRun.objects.exists()


@pytest.mark.parametrize(
    "before",
    [
        None,
        "",
        '{"model": "opus", "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "say done"}]}]}}',
        '{"permissions": {"allow": ["Bash(ls:*)"]}, "ünïcode": "✓"}',
    ],
)
def test_hooks_are_added_to_settings_once(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / ".claude" / "settings.json"
    if before is not None:
        path.parent.mkdir()
        path.write_text(before)
        path.chmod(0o640)
    command = HookFiles(tmp_path / "a 'folder").command
    backup = install(path, command, now=NOW)

    old, new = json.loads(before or "{}"), json.loads(path.read_text())
    assert {name: new[name] for name in old if name != "hooks"} == {k: v for k, v in old.items() if k != "hooks"}
    assert new["hooks"]["Stop"][: len(old.get("hooks", {}).get("Stop", []))] == old.get("hooks", {}).get("Stop", [])
    assert all(new["hooks"][name][-1]["hooks"][0]["command"] == command for name in new["hooks"])
    assert new["hooks"]["PreToolUse"][0]["matcher"] == "*"
    assert stat.S_IMODE(path.stat().st_mode) == (0o600 if before is None else 0o640)
    assert (backup.read_text() if backup else None) == before
    written = path.read_text()
    assert install(path, command, now=NOW) is None
    assert path.read_text() == written


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"hooks": []}', '{"hooks": {"Stop": {}}}', '{"a": 1, "a": 2}', "[" * 9_999]
)
def test_invalid_settings_are_left_unchanged(tmp_path: Path, content: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(content)
    with pytest.raises(BadSettings):
        install(path, "true", now=NOW)
    assert [one.name for one in tmp_path.iterdir()] == ["settings.json"]
    assert path.read_text() == content


@pytest.mark.parametrize("answers", [True, False])
def test_the_script_succeeds_at_once_without_output(tmp_path: Path, answers: bool) -> None:
    if answers and shutil.which("curl") is None:
        missing("this machine has no curl")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        files = HookFiles(tmp_path / "it's here")
        files.write(f"http://127.0.0.1:{server.getsockname()[1]}/", 'k"ey')
        assert stat.S_IMODE(files.config.stat().st_mode) == 0o600
        if not answers:
            server.close()
        # If it waited for an answer, it would wait as long as curl does, which is longer here than a busy machine
        # takes.
        script = files.script.read_text()
        assert script.count("--max-time 5 ") == 1
        files.script.write_text(script.replace("--max-time 5 ", "--max-time 250 "))
        done = subprocess.run(
            files.command,
            shell=True,
            input=b'{"a": "%s"}' % (b"x" * 300_000),
            capture_output=True,
            timeout=100,
            check=True,
        )
        assert (done.stdout, done.stderr) == (b"", b"")
        if answers:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as sent:
                head = b"".join(iter(sent.readline, b"\r\n"))
                assert b"POST /api/internal/agent-hooks/claude-code HTTP/1.1\r\nHost: 127.0.0.1" in head
                assert b'Authorization: Bearer k"ey\r\n' in head
                assert b"Content-Length: 300009\r\n" in head
    files.script.unlink()
    assert subprocess.run(files.command, shell=True, input=b"{}", timeout=100, check=True).returncode == 0


@pytest.fixture
def with_curl(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake curl on the PATH, because minimal machines lack one."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "curl").touch(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


@pytest.mark.django_db
def test_without_curl_nothing_is_installed(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make_project()
    settings.AGENTOPS_HOME = tmp_path / "home"
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match="this machine has no curl on its PATH"):
        call_command("watch", "--project", project.slug, "--hooks", "claude-code", "--install")
    assert list(tmp_path.iterdir()) == []
    assert not ApiKey.objects.exists()


@pytest.mark.django_db
@pytest.mark.usefixtures("with_curl")
def test_the_command_prints_installs_and_keeps_its_key(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = make_project()
    settings.AGENTOPS_HOME = tmp_path / "home"
    monkeypatch.setitem(os.environ, "CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    words = ["watch", "--project", project.slug, "--hooks", "claude-code"]
    call_command(*words)
    shown = json.loads(capsys.readouterr().out)
    assert not list(tmp_path.iterdir())

    for _ in range(2):
        call_command(*words, "--install")
        assert json.loads((tmp_path / "claude" / "settings.json").read_text()) == shown
    [key] = ApiKey.objects.filter(project=project)
    assert (key.scopes, key.created_by) == (["ingest"], operator())
    config = (tmp_path / "home" / "hooks" / "claude-code.curl").read_text()
    assert f"{key.prefix}_" in config
    with pytest.raises(CommandError, match="needs an API key"):
        call_command(*words, "--install", "--url", "https://agentops.example.org")
    with pytest.raises(CommandError, match="--install needs --hooks"):
        call_command("watch", "--project", project.slug, "--install")


@pytest.mark.django_db
@pytest.mark.usefixtures("with_curl")
def test_the_key_of_another_site_is_not_sent_to_this_one(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AGENTOPS_API_KEY may be set for `agentops watch --url` and `agentops mcp --url`."""
    project = make_project()
    settings.AGENTOPS_HOME, settings.AGENTOPS_API_KEY = tmp_path / "home", "aok_live_of-another-site"
    monkeypatch.setitem(os.environ, "CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    config = tmp_path / "home" / "hooks" / "claude-code.curl"
    words = ["watch", "--project", project.slug, "--hooks", "claude-code", "--install"]

    call_command(*words)
    own = config.read_text()
    call_command(*words, "--url", "https://agentops.example.org")
    other = config.read_text()

    [key] = ApiKey.objects.filter(project=project)
    assert (f"{key.prefix}_" in own, "of-another-site" in own) == (True, False)
    assert ("of-another-site" in other, "https://agentops.example.org/" in other) == (True, True)
