"""`AgentopsSession`: a session of the SDK whose items are the conversations of earlier runs on the site."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agents import SessionABC

from agentops.client import AsyncClient
from agentops.durable.openai_agents.execution import active
from agentops.durable.run import DurableRun

#: The prefix of the label of the runs of a session.
LABEL = "session:"
#: The prefix of the ID of a call that no model has requested: it is a step of the run.
_STEP = "step:"
#: Messages that are requested at the same time.
_AT_ONCE = 8


class AgentopsSession(SessionABC):
    """The conversation of all runs with one label. In a durable run, it labels the run, so that later runs find it.

    The site stores the conversation already, so items that are added are kept only in this object. Needs an API key of
    the scopes `read` and `write`.
    """

    def __init__(self, thread: str, *, url: str | None = None, key: str | None = None) -> None:
        """Prepare a session. `thread`: its name. `url`, `key`: of the site, by default, from the variables.

        Raises `ValueError` if both an argument and its variable (`AGENTOPS_URL`, `AGENTOPS_API_KEY`) are missing.
        """
        self.session_id = thread
        self.label = f"{LABEL}{thread}"
        self._url = url or os.environ.get("AGENTOPS_URL", "")
        self._key = key or os.environ.get("AGENTOPS_API_KEY", "")
        if not self._url or not self._key:
            raise ValueError("AgentopsSession needs url and key, or the variables AGENTOPS_URL and AGENTOPS_API_KEY")
        self._items: list[Any] | None = None

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the items of earlier runs, and added items. `limit`: the number of the newest ones."""
        items = await self._loaded()
        return list(items) if limit is None else items[len(items) - min(limit, len(items)) :]

    async def add_items(self, items: list[Any]) -> None:
        """Add items, for the rest of this run."""
        (await self._loaded()).extend(items)

    async def pop_item(self) -> Any:
        """Remove and return the last item, for the rest of this run."""
        items = await self._loaded()
        return items.pop() if items else None

    async def clear_session(self) -> None:
        """Remove all items, for the rest of this run. The runs stay on the site."""
        self._items = []

    async def _loaded(self) -> list[Any]:
        if self._items is None:
            execution = active()
            if execution is None:
                self._items = await self._load(None)
            else:
                key = execution.key("session")
                run = execution.run
                items = await run.at(key).step("session", lambda: self._load(run), effect="idempotent")
                self._items = list(items)
        return self._items

    async def _load(self, run: DurableRun | None) -> list[Any]:
        """Return the items of earlier runs on the site, after labelling the current one."""
        items: list[Any] = []
        async with AsyncClient(self._url, self._key) as client:
            if run is not None:
                await client.change_labels(run.id, add=[self.label])
            for run_id in await self._earlier_runs(client, run):
                items += _items_of(await _messages(client, run_id))
        return items

    async def _earlier_runs(self, client: AsyncClient, run: DurableRun | None) -> list[str]:
        """Return the IDs of the runs of the session, oldest first, without the lineage of the current run."""
        roots = {str(row.root_run_id or row.id) async for row in client.runs(label=self.label)}
        if run is not None:
            roots.discard(run.root_run_id)
        # The runs that continue a run may lack its labels.
        rows = {row.id: row for root in sorted(roots) for row in [each async for each in client.runs(root_run_id=root)]}
        return [str(row.id) for row in sorted(rows.values(), key=lambda row: row.created_at)]


async def _messages(client: AsyncClient, run_id: str) -> list[Mapping[str, Any]]:
    """Return the contents of the messages of a run, in order."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def content(message_id: Any) -> Mapping[str, Any]:
        async with limit:
            return (await client.message(run_id, message_id)).content or {}

    ids = [message.id async for message in client.messages(run_id) if message.rolled_back_at is None]
    return await asyncio.gather(*map(content, ids))


def _items_of(contents: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """Yield stored messages as items of the SDK. Calls without a result, and steps that are no calls, are left out."""
    parts = [part for content in contents for part in content.get("parts") or ()]
    answered = {part.get("tool_call_id") for part in parts if part.get("part_kind") == "tool-return"}
    for part in parts:
        kind, call_id = part.get("part_kind"), str(part.get("tool_call_id") or "")
        if call_id.startswith(_STEP):
            continue
        if kind == "user-prompt":
            yield {"role": "user", "content": _text(part["content"])}
        elif kind == "text" and part["content"]:
            yield {"role": "assistant", "content": part["content"]}
        elif kind == "tool-call" and call_id in answered:
            arguments = part.get("args") or {}
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            yield {"type": "function_call", "call_id": call_id, "name": part["tool_name"], "arguments": text}
        elif kind == "tool-return":
            yield {"type": "function_call_output", "call_id": call_id, "output": _text(part["content"])}


def _text(content: Any) -> str:
    """Return content as text: of a list of texts and media, only the texts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(part for part in content if isinstance(part, str))
    return json.dumps(content, ensure_ascii=False)
