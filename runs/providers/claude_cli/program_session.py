"""A session of the program that a worker holds: what it says, and the calls that wait for a permission.

The program executes its tools itself. Before each it asks, by a hook and often for a permission too, and gets its
answer only when the call is stored as running. All coroutines belong to the event loop of the worker's model calls. The
other methods may be called from the thread of the run, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runs.providers.claude_cli import failures
from runs.providers.claude_cli.call_requests import (
    CallVerdict,
    Message,
    SubagentRequest,
    answer_to,
    subagent_request,
)
from runs.providers.claude_cli.failures import SessionFailed
from runs.providers.claude_cli.process import CliProcess

#: The name of our hook, which the program repeats when it calls it.
HOOK = "agentops_before_tool"
#: Seconds that the program waits for an answer of our hook: a call may have to wait for others of its turn, and that of
#: a sub-agent for a person. A week, because timers of Node.js end at once if they are longer than 24 days.
HOOK_TIMEOUT_S = 7 * 86_400
#: Seconds after a result in which a program that has a further message begins its next turn.
NEXT_TURN_S = 3.0


@dataclass(frozen=True)
class ProgramCommand:
    """How to start the program."""

    words: Sequence[str]
    environment: Mapping[str, str]
    folder: Path


@dataclass(frozen=True)
class CliResult:
    """The result of a call, as the program reports it."""

    content: object
    is_error: bool


class ProgramSession:
    """One process with one session."""

    def __init__(self, process: CliProcess) -> None:
        self._process = process
        #: Messages that were read and belong to what is read next.
        self._ahead: deque[Message] = deque()
        #: Requests of the program that wait for an answer, by the call that they are about.
        self._asking: dict[str, list[Message]] = {}
        self._results: dict[str, CliResult] = {}
        #: The calls of the main conversation.
        self._calls: set[str] = set()
        self._decided: dict[str, CallVerdict] = {}
        #: What sub-agents have said, and the requests about their calls, until the thread of the run takes them.
        self._subagent_lines: deque[Message] = deque()
        self._subagent_requests: deque[SubagentRequest] = deque()
        #: The IDs of requests that the program has withdrawn.
        self._withdrawn: deque[str] = deque()
        #: Whether a message was sent in the middle of a turn. The program may keep it for a turn of its own.
        self._has_said_more = False
        #: Whether the last turn has its `result`, so that the program waits for a message.
        self.is_idle = True
        #: The API error that the last answer names.
        self.named_error: str | None = None

    @classmethod
    async def start(cls, command: ProgramCommand) -> ProgramSession:
        """Start the program and register our hook. Raises `ProviderUnusable` or `SessionFailed`."""
        session = cls(await CliProcess.start(command.words, command.environment, command.folder))
        # Without an answer of ours no tool runs: the program blocks what a failed hook is about.
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
        """Return the next message of the conversation. Raises `SessionFailed` when there is none.

        Requests about calls are kept until their calls are run. Requests about anything else are answered here.
        """
        while True:
            message = self._ahead.popleft() if self._ahead else await self._process.read()
            match message.get("type"):
                case "control_request":
                    if await self._keep(message):
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
        """Let `next_message` return a message again."""
        self._ahead.appendleft(message)

    def add_calls(self, call_ids: Sequence[str]) -> None:
        """Say which calls belong to the main conversation."""
        self._calls.update(call_ids)

    def take_results(self, message: Message) -> int:
        """Keep the results of calls in a user message. Return their number."""
        content = (message.get("message") or {}).get("content")
        found = [
            block
            for block in (content if isinstance(content, list) else [])
            if isinstance(block, dict) and block.get("type") == "tool_result"
        ]
        for block in found:
            result = CliResult(block.get("content"), block.get("is_error") is True)
            self._results[str(block.get("tool_use_id"))] = result
        return len(found)

    async def begins_next_turn(self) -> bool:
        """Return whether the program goes on after a result by itself, with a message that was sent meanwhile.

        A message that the last turn has not taken in is the begin of the next one. The program does not say which.
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
                    if message.get("type") in ("stream_event", "assistant", "result") or _is_begin(message):
                        self.is_idle = False
                        return True
                    if message.get("subtype") == "session_state_changed" and message.get("state") == "idle":
                        return False
        except (TimeoutError, SessionFailed):
            return False

    async def result_of(self, call_id: str, decision: CallVerdict) -> CliResult | None:
        """Let the program run a call, and return its result; None if the program goes on or ends without one."""
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
        """Whether this process has requested the call. An earlier one may have."""
        return call_id in self._calls

    async def decide(self, call_id: str, decision: CallVerdict) -> None:
        """Answer what the program asks about a call, now and later. What was decided first stays."""
        decision = self._decided.setdefault(call_id, decision)
        for message in self._asking.pop(call_id, []):
            await self._tell(message, decision)

    async def answer_subagent(self, request: SubagentRequest, decision: CallVerdict) -> None:
        """Answer whether a sub-agent's call may run."""
        await self._tell(request.message, decision)

    def take_subagent_lines(self) -> list[Message]:
        """Return what sub-agents have said since the last time."""
        return [self._subagent_lines.popleft() for _ in range(len(self._subagent_lines))]

    def take_subagent_requests(self) -> list[SubagentRequest]:
        """Return the requests about calls of sub-agents since the last time. Each needs an answer."""
        return [self._subagent_requests.popleft() for _ in range(len(self._subagent_requests))]

    def take_withdrawn(self) -> set[str]:
        """Return the IDs of the requests that the program has withdrawn since the last time."""
        return {self._withdrawn.popleft() for _ in range(len(self._withdrawn))}

    @property
    def asking(self) -> list[str]:
        """The calls that wait for an answer."""
        return list(self._asking)

    async def close(self) -> None:
        """End the program in its own way: it writes its files first."""
        await self._process.close()

    async def kill(self) -> None:
        await self._process.kill()

    async def _keep(self, message: Message) -> bool:
        """Keep a request about a call of the main conversation, and return True; answer or pass on any other."""
        request = message.get("request") or {}
        call_id, subtype = request.get("tool_use_id"), request.get("subtype")
        if subtype not in ("hook_callback", "can_use_tool"):
            await self._answer(message, error=f"agentops does not support {str(subtype)[:64]}")
        elif not isinstance(call_id, str) or call_id not in self._calls:
            self._subagent_requests.append(subagent_request(message))
        elif (decision := self._decided.get(call_id)) is not None:
            await self._tell(message, decision)
        else:
            self._asking.setdefault(call_id, []).append(message)
            return True
        return False

    async def _tell(self, message: Message, decision: CallVerdict) -> None:
        await self._answer(message, answer_to(message["request"], decision))

    async def _answer(self, message: Message, response: Message | None = None, *, error: str = "") -> None:
        answer: Message = {"request_id": message.get("request_id")}
        answer |= {"subtype": "error", "error": error} if error else {"subtype": "success", "response": response}
        await self._process.send({"type": "control_response", "response": answer})

    def _forget(self, request_id: object) -> None:
        for call_id, requests in list(self._asking.items()):
            kept = [request for request in requests if request.get("request_id") != request_id]
            if kept:
                self._asking[call_id] = kept
            else:
                del self._asking[call_id]

    def raise_failure(self, result: Message) -> None:
        """Raise the failure that a `result` message reports."""
        failure = failures.of_result(result, self.named_error)
        self.named_error = None
        if failure is not None:
            raise failure


def _is_begin(message: Message) -> bool:
    """Whether a message is the first of a turn."""
    return message.get("type") == "system" and message.get("subtype") == "init"
