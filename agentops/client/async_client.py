"""The asynchronous client. The synchronous one is generated from it: tests/support/repository.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Literal, Self

import httpx

from agentops.client import connection
from agentops.client.connection import RunId, T, run_path
from agentops.client.errors import AgentopsError
from agentops.client.event_stream import FrameParser, Position
from agentops.client.objects import Approval, Event, Message, Run, RunDetail, SentCommand, ToolCall


class AsyncClient:
    """Controls and reads the runs of a project of an agentops site, in one event loop.

    Methods raise `ApiError` if the site refuses the request, and `ConnectionFailed` if it cannot be reached.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        project: str | None = None,
        timeout_s: float = 30.0,
        retries: int = 3,
        reconnect_s: float = 300.0,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        """Prepare a client; nothing is sent yet.

        `project`: slug or ID; by default, the project of the key. `retries`: the number of retries after a temporary
        error; the site executes a request once. `reconnect_s`: how long `follow` tries to reach a site again. `http`:
        your own client, for proxies or certificates; you close it.

        Raises `ValueError` if `url` is not the URL of a site.
        """
        self._site = connection.Connection(url, key, project=project, retries=retries, reconnect_s=reconnect_s)
        self._timeout_s = timeout_s
        self._closes_http = http is None
        self._http = http or httpx.AsyncClient()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections, unless `http` was given."""
        if self._closes_http:
            await self._http.aclose()

    # --- Runs ---

    async def start(
        self,
        agent: str,
        prompt: str | None = None,
        *,
        title: str | None = None,
        labels: Sequence[str] | None = None,
        max_steps: int | None = None,
        parent_run_id: RunId | None = None,
        idempotency_key: str | None = None,
    ) -> RunDetail:
        """Start a run of an agent, and return it, queued."""
        body = {
            "agent_id": agent,
            "prompt": prompt,
            "title": title,
            "labels": None if labels is None else list(labels),
            "max_steps": max_steps,
            "parent_run_id": None if parent_run_id is None else str(parent_run_id),
        }
        return await self._post("/agent-runs", RunDetail, body, idempotency_key)

    async def run(self, run_id: RunId) -> RunDetail:
        """Return a run."""
        return await self._get(run_path(run_id), RunDetail)

    def runs(self, **filters: Any) -> AsyncIterator[Run]:
        """Yield runs, newest first, and get further pages while they are read.

        `filters` are the parameters of the API: `status` (also several, as a list), `agent_id`, `label`, `source`,
        `schedule_id`, `parent_run_id`, `root_run_id`, `forked_from`, `created_after`, `created_before`, `root`,
        `reason`, `cost_min`, `cost_max`, `duration_min`, `duration_max` and `q`.
        """
        return self._rows("/agent-runs", Run, **filters)

    def children(self, run_id: RunId) -> AsyncIterator[Run]:
        """Yield the child runs of a run, newest first."""
        return self._rows(run_path(run_id, "children"), Run)

    # --- Contents of a run ---

    def messages(self, run_id: RunId) -> AsyncIterator[Message]:
        """Yield the messages of a run in order, without their content."""
        return self._rows(run_path(run_id, "messages"), Message)

    async def message(self, run_id: RunId, message_id: RunId) -> Message:
        """Return a message with its content."""
        return await self._get(run_path(run_id, "messages", message_id), Message)

    def tool_calls(self, run_id: RunId) -> AsyncIterator[ToolCall]:
        """Yield the tool calls of a run in order, without input and output."""
        return self._rows(run_path(run_id, "tool-calls"), ToolCall)

    async def tool_call(self, run_id: RunId, call_id: RunId) -> ToolCall:
        """Return a tool call with its input and output."""
        return await self._get(run_path(run_id, "tool-calls", call_id), ToolCall)

    def events(self, run_id: RunId, *, after_seq: int = 0) -> AsyncIterator[Event]:
        """Yield the events that a run has so far, in order."""
        return self._rows(run_path(run_id, "events"), Event, afterSeq=after_seq)

    async def follow(
        self, run_id: RunId, *, after_seq: int = 0, stop_on_pause: bool = False, restart: bool = False
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of a run as they happen, each once and in order, until it ends.

        Reconnects automatically. A paused run has not ended: with `stop_on_pause`, the last event is `run.paused`. If
        the position becomes invalid, `StreamReset` is raised; with `restart`, all events are yielded again from `seq`
        1.
        """
        position = Position(after_seq, restart=restart, stop_on_pause=stop_on_pause)
        while not position.is_over:
            parser = FrameParser()
            try:
                async with aclosing(self._connect(run_id, position, parser)) as events:
                    async for event in events:
                        yield event
                pause = 0.0 if position.is_over else parser.retry_s
            except AgentopsError as error:
                pause = position.pause_after(error, self._site.reconnect_s)
            await asyncio.sleep(pause)

    async def _connect(self, run_id: RunId, position: Position, parser: FrameParser) -> AsyncGenerator[Event, None]:
        """Yield the events of one connection, and advance `position`."""
        await self._find_project()
        url = self._site.url_of(run_path(run_id, "events", "stream"))
        headers = self._site.headers | position.headers
        options: Any = {"params": position.params, "headers": headers, "timeout": connection.STREAM_TIMEOUT}
        try:
            async with self._http.stream("GET", url, **options) as response:
                if response.status_code == 204:
                    position.is_over = True
                elif response.status_code != 200:
                    await response.aread()
                    connection.document_of(response)
                else:
                    connection.report_deprecation(response)
                    position.connected()
                    async for chunk in response.aiter_bytes():
                        for event in position.events_in(parser.feed(chunk)):
                            yield event
                        if position.is_over:
                            return
        except httpx.HTTPError as error:
            raise connection.unreachable(error) from error

    # --- Control ---

    async def send(self, run_id: RunId, text: str, *, idempotency_key: str | None = None) -> SentCommand:
        """Send a message to a run. Its agent reads it before the next model call."""
        return await self._command(run_id, "send", text, idempotency_key)

    async def reply(self, run_id: RunId, text: str, *, idempotency_key: str | None = None) -> SentCommand:
        """Answer the question that a run waits for."""
        return await self._command(run_id, "reply", text, idempotency_key)

    async def signal(
        self, run_id: RunId, name: str, payload: Any = None, *, idempotency_key: str | None = None
    ) -> SentCommand:
        """Send a signal, which the code of a remote run waits for by name. The run keeps it until it receives it."""
        body = {"name": name, "payload": payload}
        return await self._post(run_path(run_id, "signals"), SentCommand, body, idempotency_key)

    async def resume(
        self,
        run_id: RunId,
        message: str | None = None,
        *,
        append: bool = True,
        max_steps: int | None = None,
        kill: bool = False,
        idempotency_key: str | None = None,
    ) -> RunDetail:
        """Resume a paused run, and return the new run that continues it.

        Without `append`, the new run starts over with the message as its prompt. With `kill`, the worker of a running
        run is stopped first (admins only).
        """
        body = {"message": message, "append": append, "max_steps": max_steps, "kill": kill or None}
        return await self._post(run_path(run_id, "resume"), RunDetail, body, idempotency_key)

    async def fork(
        self, run_id: RunId, step: int, message: str | None = None, *, idempotency_key: str | None = None
    ) -> RunDetail:
        """Return a new run that shares the messages of a run up to a step."""
        body = {"step": step, "message": message}
        return await self._post(run_path(run_id, "fork"), RunDetail, body, idempotency_key)

    async def pause(self, run_id: RunId, *, idempotency_key: str | None = None) -> RunDetail:
        """Pause a run after its current step. The returned run may still be running."""
        return await self._post(run_path(run_id, "pause"), RunDetail, {}, idempotency_key)

    async def stop(self, run_id: RunId, *, idempotency_key: str | None = None) -> RunDetail:
        """Stop a run for good. The returned run may still be running."""
        return await self._post(run_path(run_id, "stop"), RunDetail, {}, idempotency_key)

    async def change_labels(self, run_id: RunId, *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> RunDetail:
        """Add and remove labels of a run, and return it."""
        body = {"add_labels": list(add), "remove_labels": list(remove)}
        return RunDetail.model_validate(await self._project_request("PATCH", run_path(run_id), json=body))

    # --- Decisions about tool calls ---

    def approvals(self, **filters: Any) -> AsyncIterator[Approval]:
        """Yield the open requests to a person in the project, and the decided approvals, newest first.

        `filters` are the parameters of the API: `kind`, such as "question", `state`, such as "pending" (each also
        several, as a list), and `run_id`.
        """
        return self._rows("/approvals", Approval, **filters)

    async def approve(
        self,
        run_id: RunId,
        call_id: RunId,
        *,
        arguments: Mapping[str, Any] | None = None,
        always: bool = False,
        idempotency_key: str | None = None,
    ) -> Approval:
        """Approve the tool call that a run waits for, so that the run continues. `call_id`: from the approval.

        `arguments` replace all arguments of the call. With `always`, later calls of the tool in this run are approved
        too. Only the first decision counts: afterwards, `StateConflict` says who decided, and how.
        """
        body = {"decision": "approve", "arguments": arguments, "always": always or None}
        return await self._post(run_path(run_id, "approvals", call_id), Approval, body, idempotency_key)

    async def deny(
        self, run_id: RunId, call_id: RunId, message: str | None = None, *, idempotency_key: str | None = None
    ) -> Approval:
        """Deny the tool call that a run waits for. The model gets the message as the call's result."""
        body = {"decision": "deny", "message": message}
        return await self._post(run_path(run_id, "approvals", call_id), Approval, body, idempotency_key)

    async def resolve_call(
        self,
        run_id: RunId,
        call_id: RunId,
        choice: Literal["done", "failed", "retry"],
        text: str | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> ToolCall:
        """Resolve the unknown outcome of a tool call, so that the waiting run continues.

        `text` is the output of a call that is done, or the error of a call that failed. `retry` runs the call again.
        """
        body = {"choice": choice, "message" if choice == "failed" else "output": text}
        return await self._post(run_path(run_id, "tool-calls", call_id, "resolve"), ToolCall, body, idempotency_key)

    # --- Requests ---

    async def _command(self, run_id: RunId, kind: str, text: str, key: str | None) -> SentCommand:
        return await self._post(run_path(run_id, "commands"), SentCommand, {"type": kind, "message": text}, key)

    async def _get(self, path: str, kind: type[T]) -> T:
        return kind.model_validate(await self._project_request("GET", path))

    async def _post(self, path: str, kind: type[T], body: Mapping[str, Any], key: str | None) -> T:
        return kind.model_validate(await self._project_request("POST", path, **connection.post_options(body, key)))

    async def _rows(self, path: str, kind: type[T], /, **filters: Any) -> AsyncIterator[T]:
        """Yield the rows of all pages of a list."""
        params: Mapping[str, str] | None = connection.first_page(filters)
        while params is not None:
            page = await self._project_request("GET", path, params=params)
            for row in page["results"]:
                yield kind.model_validate(row)
            params = connection.next_page(page)

    async def _project_request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """Send a request to a path below the project, and return the JSON object of the response."""
        await self._find_project()
        return await self._request(method, self._site.url_of(path), **options)

    async def _find_project(self) -> None:
        """Get the project of the key, unless the project is known."""
        if self._site.project is None:
            self._site.project = connection.only_project(await self._request("GET", f"{self._site.api}/projects"))

    async def _request(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        """Send a request, with retries, and return the JSON object of the response."""
        options["headers"] = self._site.headers | options.get("headers", {})
        attempt = 0
        while True:
            try:
                return await self._attempt(method, url, **options)
            except AgentopsError as error:
                pause = self._site.pause_before_retry(attempt, error)
                if pause is None:
                    raise
            await asyncio.sleep(pause)
            attempt += 1

    async def _attempt(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        try:
            response = await self._http.request(method, url, timeout=self._timeout_s, **options)
        except httpx.HTTPError as error:
            raise connection.unreachable(error) from error
        return connection.document_of(response)
