"""A session of the program that a worker holds: what it says, and the calls that wait for a permission.

The program executes its tools itself. Before each it asks, by a hook and often for a permission too, and gets its
answer only when the call is stored as running. All coroutines belong to the event loop of the worker's model calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runs.providers.claude_cli import failures
from runs.providers.claude_cli.failures import SessionFailed
from runs.providers.claude_cli.process import CliProcess

Message = dict[str, Any]
#: The name of our hook, which the program repeats when it calls it.
HOOK = "agentops_before_tool"
NOT_ALLOWED = "not allowed: the agent's settings do not list this tool"


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
        #: The calls of the main conversation: those of a sub-agent are not ours to store.
        self._calls: set[str] = set()
        #: Calls that a person or a rule has allowed, whatever the program's own rules say.
        self._allowed: set[str] = set()
        #: Whether the last turn has its `result`, so that the program waits for a message.
        self.is_idle = True
        #: The API error that the last answer names.
        self.named_error: str | None = None

    @classmethod
    async def start(cls, command: ProgramCommand) -> ProgramSession:
        """Start the program and register our hook. Raises `ProviderUnusable` or `SessionFailed`."""
        session = cls(await CliProcess.start(command.words, command.environment, command.folder))
        hooks = {"PreToolUse": [{"matcher": None, "hookCallbackIds": [HOOK]}]}
        request = {"subtype": "initialize", "hooks": hooks}
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
                case "stream_event" | "assistant" | "user" if message.get("parent_tool_use_id"):
                    continue  # of a sub-agent: what it achieves is the result of its call
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

    async def result_of(self, call_id: str, arguments: Message | None = None) -> CliResult | None:
        """Let the program run a call, and return its result; None if the program goes on or ends without one.

        `arguments` replace those of the model.
        """
        if not self.knows(call_id):
            return None
        await self.permit(call_id, arguments)
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
            await self.permit(call_id, arguments)
        return self._results.pop(call_id)

    def allow(self, call_id: str) -> None:
        """Say that a person or a rule has allowed a call. Callable from any thread."""
        self._allowed.add(call_id)

    def knows(self, call_id: str) -> bool:
        """Whether this process has requested the call. An earlier one may have."""
        return call_id in self._calls

    async def permit(self, call_id: str, arguments: Message | None = None) -> None:
        """Let a call run, if the program waits for that. Its own rules decide, unless the call is allowed."""
        for message in self._asking.pop(call_id, []):
            request, is_allowed = message["request"], call_id in self._allowed
            if request["subtype"] == "can_use_tool":
                given = request.get("input") if arguments is None else arguments
                allowed = {"behavior": "allow", "updatedInput": given}
                await self._answer(message, allowed if is_allowed else _denied(NOT_ALLOWED))
            else:
                await self._answer(message, _hook_answer("allow" if is_allowed else "", arguments=arguments))

    async def refuse(self, call_id: str, reason: str) -> None:
        """Deny a call that waits for an answer."""
        for message in self._asking.pop(call_id, []):
            is_permission = message["request"]["subtype"] == "can_use_tool"
            await self._answer(message, _denied(reason) if is_permission else _hook_answer("deny", reason))

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
        """Keep a request about a call, and return True; answer any other."""
        request = message.get("request") or {}
        call_id = request.get("tool_use_id")
        if request.get("subtype") not in ("hook_callback", "can_use_tool"):
            await self._answer(message, error=f"agentops does not support {str(request.get('subtype'))[:64]}")
        elif isinstance(call_id, str) and call_id in self._calls:
            self._asking.setdefault(call_id, []).append(message)
            return True
        elif request["subtype"] == "hook_callback":
            await self._answer(message, {})  # of a sub-agent's call: the program's own rules decide
        else:
            await self._answer(message, _denied(NOT_ALLOWED))
        return False

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


def _denied(reason: str) -> Message:
    return {"behavior": "deny", "message": reason}


def _hook_answer(decision: str, reason: str = "", *, arguments: Message | None = None) -> Message:
    """Return what our hook says of a call. Without a decision and new arguments, the program's own rules go on."""
    if not decision and arguments is None:
        return {}
    output: Message = {"hookEventName": "PreToolUse", "permissionDecision": decision or "ask"}
    if reason:
        output["permissionDecisionReason"] = reason
    return {"hookSpecificOutput": output if arguments is None else {**output, "updatedInput": arguments}}
