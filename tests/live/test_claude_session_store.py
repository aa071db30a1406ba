"""claude-agent-sdk keeps its sessions on the site: by the SDK's own contract, and a session goes on elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from claude_agent_sdk.testing import run_session_store_conformance

from agentops.claude_sessions import AgentopsSessionStore, SessionStoreError
from agentops.projects.models import AuditEntry, Project
from tests.support.accounts import with_key
from tests.support.factories import make_project
from tests.support.web.server import WebThread

pytestmark = pytest.mark.django_db(transaction=True)
#: Each contract of the SDK begins with an empty store.
CONTRACTS = 20
KEY: Any = {"project_key": "-work", "session_id": "s-1"}


def store_in(web: WebThread, project: Project, *scopes: str) -> AgentopsSessionStore:
    key = with_key(project, *(scopes or ("read", "write", "secrets")))["Authorization"].removeprefix("Bearer ")
    return AgentopsSessionStore(web.url, project=project.slug, key=key)


def test_the_store_keeps_the_contract_of_the_sdk(web: WebThread) -> None:
    stores = iter([store_in(web, make_project(f"contract-{number}")) for number in range(CONTRACTS)])
    asked = []

    def next_store() -> AgentopsSessionStore:
        asked.append(next(stores))
        return asked[-1]

    asyncio.run(run_session_store_conformance(next_store))  # type: ignore[arg-type]

    # All contracts but that of summaries, which the SDK makes itself.
    assert len(asked) == 14


def test_what_was_sent_twice_is_stored_once_and_what_is_odd_or_long_comes_back(web: WebThread) -> None:
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
    # The answer had several pages. Who reads secrets is on record.
    assert AuditEntry.objects.filter(action="secrets.revealed").count() > 1


@pytest.mark.parametrize(("scopes", "missing"), [(["ingest"], "append"), (["read", "write"], "load")])
def test_a_key_without_the_scope_is_told_which(web: WebThread, scopes: list[str], missing: str) -> None:
    store = store_in(web, make_project("alpha"), *scopes)
    call = store.append(KEY, [{"type": "x"}]) if missing == "append" else store.load(KEY)

    with pytest.raises(SessionStoreError, match=r"403: .*scope"):
        asyncio.run(call)  # type: ignore[arg-type]
