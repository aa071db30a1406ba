"""A session of the program that a worker holds: its messages, and the calls that wait for permission.

The program executes its tools itself. Before each call it asks, by a hook and often also by a permission request. It
gets the answer only after the call is stored as running. All coroutines belong to the event loop of the worker's model
calls. The other methods may also be called from the thread of the run.
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

#: The name of our hook, which the program sends when it calls it.
HOOK = "agentops_before_tool"
#: Seconds that the program waits for an answer of our hook: a call may have to wait for others of its turn, and a
#: sub-agent's call for a person. Limited to a week, because Node.js timers longer than 24 days fire at once.
HOOK_TIMEOUT_S = 7 * 86_400
#: Seconds after a result within which a program with a further message begins its next turn.
NEXT_TURN_S = 3.0


@dataclass(frozen=True)
class ProgramCommand:
    """The command that starts the program."""

    words: Sequence[str]
    environment: Mapping[str, str]
    folder: Path


@dataclass(frozen=True)
class CliResult:
    """The result of a call, as reported by the program."""

    content: object
    is_error: bool


class ProgramSession:
    """One process with one session."""

    def __init__(self, process: CliProcess) -> None:
        self._process = process
        #: Messages already read, to be returned by the next reads.
        self._ahead: deque[Message] = deque()
        #: Requests of the program that wait for an answer, by call ID.
        self._asking: dict[str, list[Message]] = {}
        self._results: dict[str, CliResult] = {}
        #: The calls of the main conversation.
        self._calls: set[str] = set()
        self._decided: dict[str, CallVerdict] = {}
        #: Lines of sub-agents, and requests about their calls, until the thread of the run takes them.
        self._subagent_lines: deque[Message] = deque()
        self._subagent_requests: deque[SubagentRequest] = deque()
        #: The IDs of requests that the program has withdrawn.
        self._withdrawn: deque[str] = deque()
        #: Whether a message was sent during a turn. The program may use it for a separate turn.
        self._has_said_more = False
        #: Whether the last turn has its `result`, so the program waits for a message.
        self.is_idle = True
        #: The API error named in the last answer.
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
        """Return the next message of the conversation. Raises `SessionFailed` at the end.

        Requests about calls are kept until their calls are run. All other requests are answered here.
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
        """Make `next_message` return a message again."""
        self._ahead.appendleft(message)

    def add_calls(self, call_ids: Sequence[str]) -> None:
        """Register the calls that belong to the main conversation."""
        self._calls.update(call_ids)

    def take_results(self, message: Message) -> int:
        """Keep the results of calls in a user message. Returns their number."""
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
        """Return whether the program continues after a result, with a message that was sent during the turn.

        A message that the last turn did not use begins the next turn. The program does not report which of the two
        happened.
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
        """Permit the program to run a call, and return its result; None if it continues or ends without one."""
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
        """Whether this process has requested the call. An earlier process may have."""
        return call_id in self._calls

    async def decide(self, call_id: str, decision: CallVerdict) -> None:
        """Answer the program's requests about a call, now and later. The first decision is final."""
        decision = self._decided.setdefault(call_id, decision)
        for message in self._asking.pop(call_id, []):
            await self._tell(message, decision)

    async def answer_subagent(self, request: SubagentRequest, decision: CallVerdict) -> None:
        """Answer whether a sub-agent's call may run."""
        await self._tell(request.message, decision)

    def take_subagent_lines(self) -> list[Message]:
        """Return the new lines of sub-agents."""
        return [self._subagent_lines.popleft() for _ in range(len(self._subagent_lines))]

    def take_subagent_requests(self) -> list[SubagentRequest]:
        """Return the new requests about calls of sub-agents. Each needs an answer."""
        return [self._subagent_requests.popleft() for _ in range(len(self._subagent_requests))]

    def take_withdrawn(self) -> set[str]:
        """Return the IDs of the requests that the program has withdrawn since the last call."""
        return {self._withdrawn.popleft() for _ in range(len(self._withdrawn))}

    @property
    def asking(self) -> list[str]:
        """The calls that wait for an answer."""
        return list(self._asking)

    async def close(self) -> None:
        """End the program gently: it writes its files first."""
        await self._process.close()

    async def kill(self) -> None:
        await self._process.kill()

    async def _keep(self, message: Message) -> bool:
        """Keep a request about a call of the main conversation, and return True; answer or forward any other."""
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
