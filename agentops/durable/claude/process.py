"""One process of the program: its messages, and its requests that wait for steps of the run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeSDKClient,
    ClaudeSDKError,
    ResultMessage,
    StreamEvent,
    TextBlock,
    ToolResultBlock,
    UserMessage,
)

from agentops.durable.claude.errors import ClaudeFailed
from agentops.durable.claude.messages import ModelMessage
from agentops.durable.claude.outcomes import ToolOutcome
from agentops.durable.claude.transcript import Entries, Entry

T = TypeVar("T")
#: Seconds in which the program takes an interruption, and seconds that the end of the program is waited for.
INTERRUPT_S, END_S = 0.5, 1.5
#: Seconds after an answer in which the program reports the entries of its transcript.
MIRROR_S = 60.0
#: The result of a call that was not executed before the end of the turn.
NOT_EXECUTED = ToolOutcome("The call was not executed: the turn has ended.", is_error=True)


class ClaudeProcess:
    """A started program with the session of a run."""

    def __init__(self) -> None:
        self._client: ClaudeSDKClient | None = None
        self._reader: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        #: Entries of the transcript that no answer has taken yet, by the path of their sub-agent.
        self._entries: Entries = {}
        self._uuids: set[str] = set()
        #: Answers that no step has taken yet, and pieces of their texts.
        self._messages: deque[ModelMessage] = deque()
        self._texts: deque[str] = deque()
        #: The end of the last turn.
        self._result: ResultMessage | None = None
        self._failure: Exception | None = None
        #: By the IDs of calls of the main conversation: the inputs of our hook, its outputs, results, and the calls
        #: of in-process tools with their results.
        self._reached: dict[str, Mapping[str, Any]] = {}
        self._verdicts: dict[str, Mapping[str, Any]] = {}
        self._outcomes: dict[str, ToolOutcome] = {}
        self._own_calls: set[str] = set()
        self._own_outcomes: dict[str, ToolOutcome] = {}
        #: The calls of the last answer that a step has taken.
        self._known: set[str] = set()
        #: Whether the program may call the model after its tools.
        self._is_gate_open = True

    # --- Start and end ---

    async def start(self, client: ClaudeSDKClient, added: Sequence[Entry], *, may_call_model: bool) -> None:
        """Start the program. `added`: entries of its transcript that the journal does not have yet."""
        self._client = client
        self._is_gate_open = may_call_model
        self._entries[""] = list(added)
        try:
            await client.connect()
        except ClaudeSDKError as error:
            raise ClaudeFailed("not_started", str(error)) from error
        self._reader = asyncio.create_task(self._read(client))

    async def close(self) -> None:
        """End the program. Does not raise, and returns soon even if the program does not end."""
        self._failure = self._failure or ClaudeFailed("closed", "the program was ended")
        self._changed.set()
        if self._client is not None:
            ending = asyncio.create_task(_end(self._client, self._reader))
            _endings.add(ending)
            ending.add_done_callback(_endings.discard)
            await asyncio.wait([ending], timeout=END_S)

    # --- Messages and answers ---

    async def say(self, content: Any) -> None:
        """Send a message of a person. During a turn, the model gets it with the results of the tools."""
        assert self._client is not None
        self._result = None
        if isinstance(content, str):
            await self._client.query(content)
        else:
            await self._client.query(_one({"type": "user", "message": {"role": "user", "content": content}}))

    async def next_message(self, on_text: Callable[[str], None]) -> ModelMessage:
        """Open the gate for a model call, and return the answer when the transcript has it.

        `on_text` gets pieces of the text. An answer without calls is returned at the end of the turn. Raises
        `ClaudeFailed`.
        """
        self._is_gate_open = True
        self._changed.set()

        def ready() -> ModelMessage | None:
            while self._texts:
                on_text(self._texts.popleft())
            return self._ready_message()

        message = await self._until(ready)
        if message.error:
            raise ClaudeFailed.of_result(self._result, message)
        await self._until_stored(message)
        self._messages.popleft()
        self._known = set(message.call_ids)
        return message

    def _ready_message(self) -> ModelMessage | None:
        """Return the first answer if it is complete. Raises `ClaudeFailed` if the turn has ended without one."""
        if not self._messages:
            if self._result is None:
                return None
            if self._result.is_error:
                raise ClaudeFailed.of_result(self._result, None)
            # The program has answered without the model, for example a slash command.
            self._messages.append(ModelMessage("local", blocks=[TextBlock(self._result.result or "")]))
        message, has_more = self._messages[0], len(self._messages) > 1 or self._result is not None
        if message.error:
            return message if self._result is not None else None
        is_whole = has_more or (message.uses_tools and self._has_ended(message))
        return message if is_whole else None

    async def _until_stored(self, message: ModelMessage) -> None:
        """Wait until the program has reported the entries of an answer. Raises `ClaudeFailed` if it does not."""
        try:
            async with asyncio.timeout(MIRROR_S):
                await self._until(lambda: message.uuids <= self._uuids or None)
        except TimeoutError:
            raise ClaudeFailed("no_transcript", "the program does not report the entries of its transcript") from None

    def _has_ended(self, message: ModelMessage) -> bool:
        """Return whether an answer with calls is complete. Its first calls may begin before."""
        return message.has_ended if message.is_streamed else any(one in self._reached for one in message.call_ids)

    def take_entries(self) -> Entries:
        """Return the new entries of the transcript, once each."""
        entries, self._entries = self._entries, {}
        return {path: rows for path, rows in entries.items() if rows}

    @property
    def end_of_turn(self) -> ResultMessage | None:
        """The end of the turn, if the last answer has ended it."""
        return self._result if not self._messages else None

    # --- Calls ---

    def knows(self, call_id: str) -> bool:
        """Return whether this process has requested a call."""
        return call_id in self._known or call_id in self._reached

    async def reached(self, call_id: str) -> Mapping[str, Any]:
        """Wait until the program is about to execute a call, and return the input of the hook; {} if it is refused."""

        def ready() -> Mapping[str, Any] | None:
            return self._reached.get(call_id, {} if call_id in self._outcomes or self._result is not None else None)

        return await self._until(ready)

    def decide(self, call_id: str, output: Mapping[str, Any]) -> None:
        """Answer the hook before a call. The first answer counts."""
        self._verdicts.setdefault(call_id, output)
        self._changed.set()

    def is_allowed(self, call_id: str) -> bool:
        """Return whether our hook has allowed a call."""
        output = self._verdicts.get(call_id, {}).get("hookSpecificOutput") or {}
        return output.get("permissionDecision") == "allow"

    async def outcome_of(self, call_id: str, own: Callable[[], Awaitable[ToolOutcome]] | None) -> ToolOutcome:
        """Return the result of an allowed call. `own` executes it, if its tool belongs to an in-process server."""

        def ready() -> ToolOutcome | bool | None:
            if own is not None and call_id in self._own_calls:
                return True
            return self._outcomes.get(call_id, NOT_EXECUTED if self._result is not None else None)

        outcome = await self._until(ready)
        if isinstance(outcome, ToolOutcome):
            return outcome
        assert own is not None
        result = self._own_outcomes[call_id] = await own()
        self._changed.set()
        return result

    # --- Called by the SDK ---

    async def before_tool(self, call_id: str, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the output of our hook before a call, when the call is decided."""
        self._reached[call_id] = facts
        self._changed.set()
        return await self._or_never(lambda: self._verdicts.get(call_id))

    async def before_model(self) -> None:
        """Wait until the program may call the model with the results of its tools."""
        await self._or_never(lambda: self._is_gate_open or None)

    async def execute(self, call_id: str) -> ToolOutcome | None:
        """Return the result of a call of an in-process tool; None if it is not of the main conversation."""
        if call_id not in self._reached:
            return None
        self._own_calls.add(call_id)
        self._changed.set()
        return await self._or_never(lambda: self._own_outcomes.get(call_id))

    def mirror(self, path: str, entries: Sequence[Mapping[str, Any]]) -> None:
        """Take new entries of a transcript."""
        self._entries.setdefault(path, []).extend(dict(entry) for entry in entries)
        self._uuids.update(str(entry["uuid"]) for entry in entries if "uuid" in entry)
        self._changed.set()

    # --- The reader ---

    async def _read(self, client: ClaudeSDKClient) -> None:
        try:
            async for message in client.receive_messages():
                self._take(message)
                self._changed.set()
            self._failure = self._failure or ClaudeFailed("program_ended", "the program has ended")
        except ClaudeSDKError as error:
            self._failure = self._failure or ClaudeFailed("program_ended", str(error))
        except Exception as error:
            self._failure = self._failure or error
        finally:
            self._changed.set()

    def _take(self, message: Any) -> None:
        if getattr(message, "parent_tool_use_id", None):
            return  # of a sub-agent
        match message:
            case StreamEvent():
                self._take_event(message.event)
            case AssistantMessage():
                self._message(message.message_id or f"without:{message.uuid}").add(message)
            case UserMessage() if isinstance(message.content, list):
                for block in message.content:
                    if isinstance(block, ToolResultBlock):
                        outcome = ToolOutcome.of_block(block.content, block.is_error)
                        self._outcomes.setdefault(block.tool_use_id, outcome)
            case ResultMessage():
                self._result = message

    def _take_event(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "message_start":
            started = self._message(str(event["message"]["id"]))
            started.is_streamed = True
            started.note_usage(event["message"].get("usage"))
        elif not self._messages:
            return
        elif kind == "content_block_delta" and event["delta"].get("type") == "text_delta":
            self._texts.append(str(event["delta"]["text"]))
        elif kind == "message_delta":
            self._messages[-1].note_usage(event.get("usage"))
            self._messages[-1].stop_reason = event["delta"].get("stop_reason")
        elif kind == "message_stop":
            self._messages[-1].has_ended = True

    def _message(self, message_id: str) -> ModelMessage:
        """Return the answer with this ID, which is the last one, or a new one."""
        if not self._messages or self._messages[-1].id != message_id:
            self._messages.append(ModelMessage(message_id))
            # The next answer waits for its step.
            self._is_gate_open = False
        return self._messages[-1]

    async def _or_never(self, ready: Callable[[], T | None]) -> T:
        """Wait until `ready` returns a value, also after the program has failed or ended.

        If this returned, the program would continue while it is being ended, so it waits until the SDK cancels it.
        """
        try:
            return await self._until(ready)
        except Exception:
            return await asyncio.Future()

    async def _until(self, ready: Callable[[], T | None]) -> T:
        """Wait until `ready` returns a value. Raises the failure of the program."""
        while True:
            value = ready()
            if value is not None:
                return value
            if self._failure is not None:
                raise self._failure
            changed = self._changed
            if changed.is_set():
                changed = self._changed = asyncio.Event()
                continue
            await changed.wait()


#: Programs that are ending.
_endings: set[asyncio.Task[None]] = set()


async def _end(client: ClaudeSDKClient, reader: asyncio.Task[None] | None) -> None:
    """Interrupt the turn, so that the program does not call the model again, and end the program."""
    try:
        with suppress(Exception):
            async with asyncio.timeout(INTERRUPT_S):
                await client.interrupt()
        with suppress(Exception):
            await client.disconnect()
    except asyncio.CancelledError:
        # The event loop ends.
        with suppress(Exception):
            await client.disconnect()
        raise
    finally:
        if reader is not None:
            reader.cancel()


async def _one(message: dict[str, Any]) -> Any:
    yield message
