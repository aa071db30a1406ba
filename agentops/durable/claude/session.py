"""The session of a run: its transcript, and the program that continues it when the journal ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    PermissionResultAllow,
    PermissionResultDeny,
    ResultMessage,
)

from agentops.durable.answers import Answer, Call, Effect
from agentops.durable.claude.errors import OutcomeLost
from agentops.durable.claude.messages import blocks_of
from agentops.durable.claude.outcomes import ToolOutcome
from agentops.durable.claude.own_tools import OwnTool, ServedTools, servers_of
from agentops.durable.claude.permissions import DELEGATES, READS, ToolPermission, ToolPermissions
from agentops.durable.claude.process import ClaudeProcess
from agentops.durable.claude.spending import ClaudeSpending
from agentops.durable.claude.transcript import ClaudeJournal, Continuation, Entries, Entry

#: Seconds that a hook may wait: a call may wait for other calls. Timers of the program are at most 24 days.
HOOK_TIMEOUT_S = 7 * 86_400.0
#: Makes the program continue a turn whose transcript ends without an answer.
_CONTINUE = {"CLAUDE_CODE_RESUME_INTERRUPTED_TURN": "1"}
#: The message that continues a turn which was interrupted after an answer without calls.
CONTINUE = "Continue from where you left off."


class ClaudeSession:
    """The session of one execution of a run."""

    def __init__(
        self,
        run_id: str,
        options: ClaudeAgentOptions,
        tools: Mapping[str, OwnTool],
        effects: Mapping[str, Effect],
    ) -> None:
        """Prepare a session. `tools`: of in-process servers. `effects`: of tools, by name, before the defaults."""
        self.program: ClaudeProcess | None = None
        self.tools = tools
        self.permissions = ToolPermissions(options, {name: tool.effect for name, tool in tools.items()})
        self._run_id = run_id
        self._options = options
        self._effects = effects
        self._transcript = ClaudeJournal()
        self._composed: Entries = {}
        self._spending = ClaudeSpending()
        #: Since the last answer: the outcomes of its calls, and messages of people.
        self._outcomes: dict[str, ToolOutcome] = {}
        self._texts: list[Any] = []
        #: Whether the last answer ended its turn.
        self._is_idle = True

    def effect_of(self, tool: str) -> Effect:
        """Return the effect of a tool."""
        if tool in self._effects:
            return self._effects[tool]
        own = self.tools.get(tool)
        if own is not None:
            return own.effect
        # A sub-agent that is repeated executes all its calls again, and some of them may change something.
        return "read" if tool in READS - DELEGATES else "once"

    # --- The conversation ---

    def say(self, content: Any) -> None:
        """Add a message of a person. The program gets it before the next answer."""
        self._texts.append(content)

    def note_outcome(self, call_id: str, outcome: ToolOutcome) -> None:
        """Add the outcome of a call of the last answer."""
        self._outcomes[call_id] = outcome

    async def next_answer(self, on_text: Callable[[str], None]) -> Answer:
        """Return the next answer of the model. Raises `ClaudeFailed`."""
        if self.program is None:
            program = await self._start()
        else:
            program = self.program
            await self._say_all(program)
        message = await program.next_message(on_text)
        self._spending.count(message)
        end = program.end_of_turn
        raw = {"entries": program.take_entries(), "ended": None if end is None else self._facts_of(end)}
        return message.as_answer(self.effect_of, raw)

    def take(self, answer: Answer) -> None:
        """Continue after an answer, which `next_answer` returned in this or an earlier execution."""
        self._transcript.add(answer.raw["entries"])
        self._outcomes, self._texts = {}, []
        self._is_idle = answer.raw["ended"] is not None

    def _facts_of(self, end: ResultMessage) -> dict[str, Any]:
        error = None
        if end.is_error:
            error = {"kind": end.subtype, "message": "; ".join(end.errors or ()) or end.result or ""}
        usage = self._spending.rest(end.model_usage or {})
        return {"result": end.result, "structured": end.structured_output, "error": error, "usage": usage}

    # --- Calls ---

    async def permission(self, call: Call) -> ToolPermission:
        """Return the permission of a call when the program has reached it; at once, if it is not at work."""
        facts: Mapping[str, Any] = {}
        if self.program is not None and self.is_at(call.id):
            facts = await self.program.reached(call.id)
            if not facts:
                return ToolPermission(call.arguments)
        given = {"hook_event_name": "PreToolUse", "tool_name": call.name, "tool_use_id": call.id}
        named = {"session_id": self._run_id, "transcript_path": "", "cwd": str(self._options.cwd or "")}
        return await self.permissions.of(call.name, {**given, **named, "tool_input": call.arguments, **facts}, call.id)

    async def execute(self, call: Call, arguments: Mapping[str, Any], permission: ToolPermission) -> ToolOutcome:
        """Execute a call, and return its result. Starts the program if the call is one of its tools.

        Raises `ClaudeFailed`, and `OutcomeLost` if the call may have taken effect and must not be repeated.
        """
        own = self.tools.get(call.name)
        if not self.is_at(call.id):
            await self.close()  # it continues another call of the same answer
        if self.program is None and own is not None:
            return await own(arguments)
        program = self.program or await self._start(replace(call, arguments=arguments))
        given = (await program.reached(call.id)).get("tool_input")
        program.decide(call.id, _allowed(permission, None if arguments == given else arguments))
        if own is not None:
            return await program.outcome_of(call.id, lambda: own(arguments))
        try:
            return await program.outcome_of(call.id, None)
        except Exception as error:
            if call.effect == "once":
                raise OutcomeLost(error) from error
            raise

    def is_at(self, call_id: str) -> bool:
        """Return whether the program at work has requested a call."""
        return self.program is not None and self.program.knows(call_id)

    def refuse(self, call_id: str, reason: str) -> None:
        """Tell the program that a call is denied, if it waits for the decision."""
        if self.program is not None:
            self.program.decide(call_id, _denied(reason))

    # --- The program ---

    async def close(self) -> None:
        """End the program."""
        program, self.program = self.program, None
        if program is not None:
            await program.close()

    async def _start(self, deferred: Call | None = None) -> ClaudeProcess:
        """Start the program where the journal ends."""
        continuation = Continuation(self._outcomes, () if deferred else self._texts, deferred)
        continues = not self._is_idle and continuation.is_needed
        if not continues and not self._texts:
            self._texts = [CONTINUE]
        added = self._transcript.added_for(continuation) if continues else []
        self._composed = {} if self._transcript.is_empty else self._transcript.copy(self._run_id, added)
        program = self.program = ClaudeProcess()
        self._spending = ClaudeSpending()
        client = ClaudeSDKClient(self._options_for(program, continues=continues and deferred is None))
        await program.start(client, added, may_call_model=deferred is None)
        if not continues:
            await self._say_all(program)
        elif deferred is None:
            self._texts = []
        return program

    async def _say_all(self, program: ClaudeProcess) -> None:
        """Send all messages as one, because the program might begin a separate turn for each."""
        texts, self._texts = self._texts, []
        if len(texts) == 1:
            await program.say(texts[0])
        elif texts:
            await program.say([block for text in texts for block in blocks_of(text)])

    def _options_for(self, program: ClaudeProcess, *, continues: bool) -> ClaudeAgentOptions:
        """Return the options of a program, whose hooks and tools report to `program`."""
        served = {
            name: {"type": "sdk", "name": name, "instance": ServedTools(server, program.execute)}
            for name, server in servers_of(self._options.mcp_servers).items()
        }
        servers: Any = {**self._options.mcp_servers, **served} if served else self._options.mcp_servers  # type: ignore[dict-item]
        return replace(
            self._options,
            mcp_servers=servers,
            hooks=self._hooks(program),
            can_use_tool=self._can_use_tool,
            session_store=cast("Any", _Store(self._composed, program)),
            session_store_flush="eager",
            resume=self._run_id if self._composed else None,
            include_partial_messages=True,
            env={**self._options.env, **(_CONTINUE if continues else {})},
            **self._rules(),
        )

    def _rules(self) -> dict[str, Any]:
        """Return the options with the rules for the program's tools.

        As an option, `allowed_tools` makes the SDK warn that the callback does not get these calls. The user gave no
        callback, and ours need not see these calls, so the rules are passed as a flag.
        """
        options = self._options
        if options.can_use_tool is not None or options.skills is not None or not options.allowed_tools:
            return {}
        return {
            "allowed_tools": [],
            "extra_args": {**options.extra_args, "allowedTools": ",".join(options.allowed_tools)},
        }

    def _hooks(self, program: ClaudeProcess) -> Any:
        """Return the hooks of the options with ours. Those before a call are called by ours."""

        async def before_tool(facts: Any, call_id: str | None, _: Any) -> Any:
            if facts.get("agent_id"):
                tool = str(facts["tool_name"])
                permission = await self.permissions.of_subagent(tool, facts, call_id or "")
                return _denied(permission.denied) if permission.denied else _allowed(permission)
            return await program.before_tool(call_id or "", facts)

        async def before_model(facts: Any, _: str | None, __: Any) -> Any:
            if not facts.get("agent_id"):
                await program.before_model()
            return {}

        hooks: dict[Any, list[HookMatcher]] = {name: list(given) for name, given in (self._options.hooks or {}).items()}
        hooks["PreToolUse"] = [HookMatcher(hooks=[before_tool], timeout=HOOK_TIMEOUT_S, on_failure="block")]
        gate = HookMatcher(hooks=[before_model], timeout=HOOK_TIMEOUT_S)
        hooks["PostToolBatch"] = [*hooks.get("PostToolBatch", ()), gate]
        return hooks

    async def _can_use_tool(self, tool: str, arguments: dict[str, Any], context: Any) -> Any:
        """Decide about a call that the program's own rules do not allow: by the options' callback, or deny it."""
        if self._options.can_use_tool is not None:
            return await self._options.can_use_tool(tool, arguments, context)
        program = self.program
        if program is not None and program.is_allowed(str(context.tool_use_id)):
            return PermissionResultAllow()
        return PermissionResultDeny(message="No rule of allowed_tools allows this call.")


def _allowed(permission: ToolPermission, changed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the output of a hook for a call that may be executed. Without a decision, the program's rules apply.

    `changed`: arguments that replace the model's.
    """
    output: dict[str, Any] = {"hookEventName": "PreToolUse", **permission.output}
    if permission.is_allowed or permission.needs_approval or changed is not None:
        output["permissionDecision"] = "allow"
    if changed is not None:
        output["updatedInput"] = dict(changed)
    return {"hookSpecificOutput": output}


def _denied(reason: str) -> dict[str, Any]:
    output = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": reason}
    return {"hookSpecificOutput": output}


class _Store:
    """The journal as the SDK's session store: a program starts from it, and reports new entries to it."""

    def __init__(self, composed: Entries, program: ClaudeProcess) -> None:
        self._composed = composed
        self._program = program

    async def append(self, key: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> None:
        self._program.mirror(str(key.get("subpath") or ""), entries)

    async def load(self, key: Mapping[str, Any]) -> list[Entry] | None:
        return self._composed.get(str(key.get("subpath") or ""))

    async def list_subkeys(self, _: Mapping[str, Any]) -> list[str]:
        return [path for path in self._composed if path]
