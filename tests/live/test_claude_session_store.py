"""Session store for claude-agent-sdk: it passes the SDK's contract tests, and sessions continue on other machines."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, PermissionResultAllow, project_key_for_directory
from claude_agent_sdk.testing import run_session_store_conformance

from agentops.accounts.models import AuditEntry, Project
from agentops.claude_sessions import AgentopsSessionStore, SessionStoreError
from tests.support.factories import make_project, with_key
from tests.support.programs.stub_cli import scripted_program
from tests.support.web_server import WebThread

pytestmark = pytest.mark.django_db(transaction=True)
#: Number of empty stores needed: each contract test of the SDK starts with one.
CONTRACTS = 20
KEY: Any = {"project_key": "-work", "session_id": "s-1"}


def store_in(web: WebThread, project: Project, *scopes: str) -> AgentopsSessionStore:
    key = with_key(project, *(scopes or ("read", "write", "secrets")))["Authorization"].removeprefix("Bearer ")
    return AgentopsSessionStore(web.url, project=project.slug, key=key)


@pytest.mark.slow
def test_the_store_passes_the_contract_tests_of_the_sdk(web: WebThread) -> None:
    stores = iter([store_in(web, make_project(f"contract-{number}")) for number in range(CONTRACTS)])
    asked = []

    def next_store() -> AgentopsSessionStore:
        asked.append(next(stores))
        return asked[-1]

    asyncio.run(run_session_store_conformance(next_store))  # type: ignore[arg-type]

    # All contract tests except the summary test: the SDK creates summaries itself.
    assert len(asked) == 14


def test_repeated_appends_are_stored_once_and_load_returns_odd_and_long_text(web: WebThread) -> None:
    store, elsewhere = (store_in(web, project) for project in [make_project("alpha")] * 2)
    odd = [
        {"type": "x", "uuid": f"u{n}", "text": "NUL \0, half \ud800, 😀, sk-ant-api03-" + "a" * 9_000}
        for n in range(600)
    ]
    titles = [{"type": "custom-title", "customTitle": "same"}] * 2

    async def mirror_and_load() -> Any:
        await store.append(KEY, odd)
        await store.append(KEY, [*odd[-3:], *titles])
        return await elsewhere.load(KEY)

    assert asyncio.run(mirror_and_load()) == [*odd, *titles]
    # The response had several pages. Each reading of secrets is audited.
    assert AuditEntry.objects.filter(action="secrets.revealed").count() > 1


def test_deleting_a_session_is_audited(web: WebThread) -> None:
    store = store_in(web, make_project("alpha"))

    async def delete() -> None:
        await store.append(KEY, [{"type": "x"}])
        await store.append({**KEY, "subpath": "subagents/a"}, [{"type": "x"}])
        await store.delete(KEY)
        await store.delete(KEY)

    asyncio.run(delete())

    [entry] = AuditEntry.objects.filter(action="transcript.deleted")
    assert entry.actor.startswith("key:")
    assert entry.before == {"project_key": "-work", "session_id": "s-1", "transcripts": 2}


@pytest.mark.parametrize(("scopes", "missing"), [(["ingest"], "append"), (["read", "write"], "load")])
def test_a_key_without_the_scope_is_refused_by_name(web: WebThread, scopes: list[str], missing: str) -> None:
    store = store_in(web, make_project("alpha"), *scopes)
    call = store.append(KEY, [{"type": "x"}]) if missing == "append" else store.load(KEY)

    with pytest.raises(SessionStoreError, match=r"403: .*scope"):
        asyncio.run(call)  # type: ignore[arg-type]


class Machine:
    """A machine with the program, whose sessions exist only in the store."""

    def __init__(self, root: Path, name: str, store: AgentopsSessionStore) -> None:
        self.folder, self.store = root / name, store
        # Sessions belong to a working directory, which is the same path on both machines.
        self.work, self.config = root / "work", self.folder / "config"
        for folder in (self.work, self.config):
            folder.mkdir(parents=True, exist_ok=True)
        self.permissions: list[tuple[str, dict[str, Any]]] = []

    async def _allow(self, tool: str, asked: dict[str, Any], _: Any) -> PermissionResultAllow:
        self.permissions.append((tool, asked))
        return PermissionResultAllow(updated_input={"command": "echo approved"})

    def ask(self, prompt: str, acts: list[dict[str, Any]], resume: str | None = None) -> list[Any]:
        """Return the messages that the SDK yields for one turn of the program."""
        options = ClaudeAgentOptions(
            cli_path=scripted_program(self.folder, [acts]),
            cwd=self.work,
            env={"CLAUDE_CONFIG_DIR": str(self.config), "HOME": str(self.folder)},
            session_store=self.store,
            resume=resume,
            can_use_tool=self._allow,
            include_partial_messages=True,
        )

        async def turn() -> list[Any]:
            async with ClaudeSDKClient(options) as client:
                await client.query(prompt)
                return [message async for message in client.receive_response()]

        return asyncio.run(turn())


def test_the_sdk_drives_the_stub_and_a_session_continues_on_another_machine(web: WebThread, tmp_path: Path) -> None:
    store = store_in(web, make_project("alpha"))
    laptop, server = (Machine(tmp_path, name, store) for name in ("laptop", "server"))
    tool = {"tool": "Bash", "input": {"command": "rm"}, "output": "ran {command}"}

    first = laptop.ask("Begin.", [tool, {"text": "Half done."}])
    session_id = first[-1].session_id
    second = server.ask(
        "Go on.", [{"text": "All done."}, {"result": "error_max_turns", "errors": ["9 turns"]}], session_id
    )

    kinds = [type(message).__name__ for message in first]
    assert kinds == [
        *("SystemMessage", "AssistantMessage", "UserMessage"),
        *("StreamEvent", "AssistantMessage", "ResultMessage"),
    ]
    assert laptop.permissions == [("Bash", {"command": "rm"})]
    assert first[2].content[0].content == "ran echo approved"
    assert (second[-1].session_id, second[-1].subtype, second[-1].is_error) == (session_id, "error_max_turns", True)
    key: Any = {"project_key": project_key_for_directory(tmp_path / "work"), "session_id": session_id}
    entries = asyncio.run(store.load(key))
    assert entries is not None
    texts = json.dumps(entries)
    assert [entry["type"] for entry in entries] == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert texts.index("Begin.") < texts.index("Half done.") < texts.index("Go on.") < texts.index("All done.")
