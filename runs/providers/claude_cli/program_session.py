"""A session of Claude Code that a worker holds: its messages, and the calls that wait for permission.

The program executes its tools itself. Before each call it asks, by a hook and often also by a permission request. It
gets the answer only after the call is stored as running. Async methods run on the event loop of the worker's model
calls. The other methods may also be called on the thread of the run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runs.providers.claude_cli import program_messages
from runs.providers.claude_cli.process import CliProcess
from runs.providers.claude_cli.program_messages import (
    CallVerdict,
    Message,
    SessionFailed,
    SubagentRequest,
    answer_to,
    subagent_request,
)

#: The ID of our hook, which the program names when it calls the hook.
HOOK = "agentops_before_tool"
#: Seconds that the program waits for an answer of our hook: a call may wait for other calls or for a person. It is only
#: a week, because Node.js timers longer than 24 days fire at once.
HOOK_TIMEOUT_S = 7 * 86_400
#: Seconds within which the program begins a turn after a result, if it has a further message.
NEXT_TURN_S = 3.0


@dataclass(frozen=True)
class ProgramCommand:
    """The command that starts the program."""

    words: Sequence[str]
    environment: Mapping[str, str]
    folder: Path


@dataclass(frozen=True)
class CliResult:
    """The result of a call that the program reports."""

    content: object
    is_error: bool


class ProgramSession:
    """One process with one session."""

    def __init__(self, process: CliProcess) -> None:
        self._process = process
        #: Messages that were read already, but not processed.
        self._ahead: deque[Message] = deque()
        #: The IDs of the calls of the main conversation. The following three are by these IDs.
        self._calls: set[str] = set()
        #: Requests of the program about a call that wait for an answer.
        self._asking: dict[str, list[Message]] = {}
        #: Results that were not fetched yet.
        self._results: dict[str, CliResult] = {}
        self._decided: dict[str, CallVerdict] = {}
        #: Lines of sub-agents, and requests about their calls, until the thread of the run takes them.
        self._subagent_lines: deque[Message] = deque()
        self._subagent_requests: deque[SubagentRequest] = deque()
        #: The IDs of requests that the program has withdrawn.
        self._withdrawn: deque[str] = deque()
        #: Whether the last message was sent during a turn. The program may begin a separate turn with it.
        self._has_said_more = False
        #: Whether the last turn has its `result`, so the program waits for a message.
        self.is_idle = True
        #: Claude Code's name of the API error in the last answer.
        self.named_error: str | None = None

    @classmethod
    async def start(cls, command: ProgramCommand) -> ProgramSession:
        """Start the program and register our hook. Raises `ProviderUnusable` or `SessionFailed`."""
        session = cls(await CliProcess.start(command.words, command.environment, command.folder))
        # If our hook does not answer, no tool runs: the program blocks the call of a failed hook.
        hook = {"matcher": None, "hookCallbackIds": [HOOK], "timeout": HOOK_TIMEOUT_S, "onFailure": "block"}
        request = {"subtype": "initialize", "hooks": {"PreToolUse": [hook]}, "forwardSubagentText": True}
        try:
            await session._process.send({"type": "control_request", "request_id": "initialize", "request": request})
        except BaseException:
            await session.kill()
            raise
        return session

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive

    async def say(self, content: str | list[dict[str, Any]]) -> None:
        """Send a user's message."""
        message = {"role": "user", "content": content}
        self._has_said_more = not self.is_idle
        self.is_idle = False
        await self._process.send({"type": "user", "session_id": "", "message": message, "parent_tool_use_id": None})

    async def next_message(self) -> Message:
        """Return the next message of the main conversation. Raises `SessionFailed` at the end of the output.

        A request about a call is kept until the call is decided. Messages of sub-agents are kept for the thread of the
        run. Other requests are answered here.
        """
        while True:
            message = self._ahead.popleft() if self._ahead else await self._process.read()
            match message.get("type"):
                case "control_request":
                    if await self._process_request(message):
                        return message
                case "control_cancel_request":
                    self._forget(message.get("request_id"))
                    self._withdrawn.append(str(message.get("request_id")))
                case "stream_event" | "assistant" | "user" if message.get("parent_tool_use_id"):
                    self._subagent_lines.append(message)
                case "system" if message.get("subtype") == "task_notification":
                    self._subagent_lines.append(message)
                case "stream_event" | "assistant" | "user":
                    return message
                case "result":
                    self.is_idle = True
                    return message

    def put_back(self, message: Message) -> None:
        """Make the next call of `next_message` return this message again."""
        self._ahead.appendleft(message)

    def add_calls(self, call_ids: Sequence[str]) -> None:
        """Register calls as part of the main conversation."""
        self._calls.update(call_ids)

    def take_results(self, message: Message) -> int:
        """Keep the results of calls in a user message. Returns their number."""
        content = (message.get("message") or {}).get("content")
        blocks = [block for block in (content if isinstance(content, list) else []) if isinstance(block, dict)]
        results = [block for block in blocks if block.get("type") == "tool_result"]
        for block in results:
            result = CliResult(block.get("content"), block.get("is_error") is True)
            self._results[str(block.get("tool_use_id"))] = result
        return len(results)

    async def begins_next_turn(self) -> bool:
        """Return whether the program begins another turn after a result, with a message that was sent during the turn.

        The program either used the message in that turn or begins the next one with it. It does not report which, so
        this waits for up to `NEXT_TURN_S`.
        """
        if not self._has_said_more:
            return False
        self._has_said_more = False
        try:
            async with asyncio.timeout(NEXT_TURN_S):
                while True:
                    message = await self._process.read()
                    if message.get("type") != "system":
                        self._ahead.append(message)
                    is_first = message.get("type") == "system" and message.get("subtype") == "init"
                    if is_first or message.get("type") in ("stream_event", "assistant", "result"):
                        self.is_idle = False
                        return True
                    if message.get("subtype") == "session_state_changed" and message.get("state") == "idle":
                        return False
        except (TimeoutError, SessionFailed):
            return False

    async def result_of(self, call_id: str, decision: CallVerdict) -> CliResult | None:
        """Send the decision about a call, and return the result of the call.

        Returns None if the program ends or continues without a result, or if an earlier process requested the call.
        """
        if not self.knows(call_id):
            return None
        await self.decide(call_id, decision)
        while call_id not in self._results:
            try:
                message = await self.next_message()
            except SessionFailed as failure:
                if failure.error_type == "session_broken":
                    await self.kill()
                return None
            if message["type"] in ("assistant", "result"):
                self.put_back(message)
                return None
            if message["type"] == "user":
                self.take_results(message)
        return self._results.pop(call_id)

    def knows(self, call_id: str) -> bool:
        """Return whether this process of the session has requested the call. An earlier process may have."""
        return call_id in self._calls

    async def decide(self, call_id: str, decision: CallVerdict) -> None:
        """Answer the program's requests about a call, also later ones. The first decision about a call is final."""
        decision = self._decided.setdefault(call_id, decision)
        for message in self._asking.pop(call_id, []):
            await self._send_decision(message, decision)

    async def answer_subagent(self, request: SubagentRequest, decision: CallVerdict) -> None:
        """Answer a request about a sub-agent's call."""
        await self._send_decision(request.message, decision)

    def take_subagent_lines(self) -> list[Message]:
        """Return the lines of sub-agents, once each."""
        return [self._subagent_lines.popleft() for _ in range(len(self._subagent_lines))]

    def take_subagent_requests(self) -> list[SubagentRequest]:
        """Return the requests about calls of sub-agents, once each. Each needs an answer."""
        return [self._subagent_requests.popleft() for _ in range(len(self._subagent_requests))]

    def take_withdrawn(self) -> set[str]:
        """Return the IDs of requests that the program has withdrawn, once each."""
        return {self._withdrawn.popleft() for _ in range(len(self._withdrawn))}

    @property
    def asking(self) -> list[str]:
        """The IDs of the calls that wait for a decision."""
        return list(self._asking)

    async def close(self) -> None:
        """End the program after it has written its files."""
        await self._process.close()

    async def kill(self) -> None:
        await self._process.kill()

    async def _process_request(self, message: Message) -> bool:
        """Keep a request about an undecided call of the main conversation, and return True.

        Requests about decided calls are answered, those about calls of sub-agents kept for the thread of the run.
        """
        request = message.get("request") or {}
        call_id, subtype = request.get("tool_use_id"), request.get("subtype")
        if subtype not in ("hook_callback", "can_use_tool"):
            await self._answer(message, error=f"agentops does not support {str(subtype)[:64]}")
        elif not isinstance(call_id, str) or call_id not in self._calls:
            self._subagent_requests.append(subagent_request(message))
        elif (decision := self._decided.get(call_id)) is not None:
            await self._send_decision(message, decision)
        else:
            self._asking.setdefault(call_id, []).append(message)
            return True
        return False

    async def _send_decision(self, message: Message, decision: CallVerdict) -> None:
        await self._answer(message, answer_to(message["request"], decision))

    async def _answer(self, message: Message, response: Message | None = None, *, error: str = "") -> None:
        answer: Message = {"request_id": message.get("request_id")}
        answer |= {"subtype": "error", "error": error} if error else {"subtype": "success", "response": response}
        await self._process.send({"type": "control_response", "response": answer})

    def _forget(self, request_id: object) -> None:
        """Drop a request about a call that the program has withdrawn."""
        for call_id, requests in list(self._asking.items()):
            self._asking[call_id] = [request for request in requests if request.get("request_id") != request_id]
            if not self._asking[call_id]:
                del self._asking[call_id]

    def raise_failure(self, result: Message) -> None:
        """Raise the `SessionFailed` that a `result` message reports, if any."""
        failure = program_messages.failure_of_result(result, self.named_error)
        self.named_error = None
        if failure is not None:
            raise failure
