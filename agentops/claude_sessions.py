"""A session store for claude-agent-sdk: it copies sessions to an agentops site, so another machine can resume them.

It uses the site's HTTP API, and does not need Django.

    store = AgentopsSessionStore("https://agentops.example.org", project="web", key=os.environ["SESSIONS_KEY"])
    options = ClaudeAgentOptions(session_store=store, resume=session_id)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urljoin

import httpx

from agentops.client.connection import request_headers, site_url

if TYPE_CHECKING:
    from claude_agent_sdk import SessionKey, SessionListSubkeysKey, SessionStoreEntry
    from claude_agent_sdk.types import SessionStoreListEntry

#: Timeout of a request in seconds.
TIMEOUT_S = 30.0
#: Maximum bytes and entries of a request; a single larger entry is sent by itself. A site accepts 5 MiB.
BATCH_BYTES, BATCH_ENTRIES = 2 * 1024 * 1024, 500
#: Sessions per page.
PAGE = 200


class SessionStoreError(Exception):
    """The site is unreachable, or refuses the request. The message gives the reason."""


class AgentopsSessionStore:
    """Stores the transcripts of claude-agent-sdk in a project of an agentops site.

    Implements `append`, `load`, `list_sessions`, `delete` and `list_subkeys` of the SDK's SessionStore.
    """

    def __init__(self, url: str, *, project: str, key: str) -> None:
        """Prepare the store. `key`: an API key of the project with the scopes `read`, `write` and `secrets`.

        Raises `ValueError` if `url` is not the URL of a site, or `key` cannot be sent in a header.
        """
        self._sessions = f"{site_url(url)}/api/projects/{quote(project, safe='')}/claude-sessions"
        self._headers = {**request_headers(key), "Content-Type": "application/json"}
        self._tls = httpx.create_ssl_context()

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append entries to a transcript. Entries that a failed call has stored are recognised by their `uuid`."""
        for batch in _batches(entries):
            body = f'{json.dumps(key)[:-1]},"entries":[{",".join(batch)}]}}'
            await self._request("POST", self._sessions, content=body)

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the entries of a transcript, or None if it does not exist."""
        entries: list[SessionStoreEntry] = []
        after: int | None = 0
        while after is not None:
            answer = await self._request(
                "GET", f"{self._sessions}/entries", params={**_params(key), "after": str(after)}
            )
            if answer["entries"] is None:
                return None
            entries += answer["entries"]
            after = answer["next"]
        return entries

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions with this key, with the time of their last entry in milliseconds since 1970."""
        rows: list[SessionStoreListEntry] = []
        answer = await self._request("GET", self._sessions, params={"project_key": project_key, "limit": str(PAGE)})
        while True:
            rows += [{"session_id": row["session_id"], "mtime": row["mtime"]} for row in answer["results"]]
            if answer["next"] is None:
                return rows
            answer = await self._request("GET", urljoin(self._sessions, answer["next"]))

    async def delete(self, key: SessionKey) -> None:
        """Delete a transcript; deleting a session also deletes the transcripts of its sub-agents."""
        await self._request("DELETE", f"{self._sessions}/entries", params=_params(key))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the names of the transcripts of a session's sub-agents."""
        answer = await self._request("GET", f"{self._sessions}/subpaths", params=_params(key))
        return cast(list[str], answer["subpaths"])

    async def _request(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        """Send a request, and return the JSON object of the response. Raises `SessionStoreError`."""
        # Connections do not outlive a call: the SDK never closes a store, and may use it in several event loops.
        client = httpx.AsyncClient(timeout=TIMEOUT_S, headers=self._headers, verify=self._tls)
        try:
            async with client:
                response = await client.request(method, url, **options)
        except httpx.HTTPError as error:
            raise SessionStoreError(f"{self._sessions} cannot be reached: {error!r}") from error
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if response.is_success and isinstance(answer, dict):
            return answer
        detail = answer.get("detail") if isinstance(answer, dict) else None
        raise SessionStoreError(f"{self._sessions} answers {response.status_code}{f': {detail}' if detail else ''}")


def _params(key: SessionKey | SessionListSubkeysKey) -> dict[str, str]:
    return {name: str(value) for name, value in key.items()}


def _batches(entries: Sequence[SessionStoreEntry]) -> Iterator[list[str]]:
    """Yield the entries as JSON texts, in batches that fit into a request."""
    batch: list[str] = []
    size = 0
    for entry in entries:
        text = json.dumps(entry)
        if batch and (size + len(text) > BATCH_BYTES or len(batch) == BATCH_ENTRIES):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch
