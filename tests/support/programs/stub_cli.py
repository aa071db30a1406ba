"""A stub of Claude Code's command line with the stream-json protocol. It plays a script, and a test installs it.

    python stub_cli.py SCRIPT [the arguments of the program]

The script is a JSON list of turns, each a list of acts; each user message plays the next turn. Or it is {"plan": acts}.
A user message then skips one act for each answer in the transcript, so a resumed session continues. A turn without a
result ends with success. Acts that answer:

- {"text": …}
- {"tool": name, "input": …, "output": …}
- {"tools": [two or more of these]}: one answer; the results come in reverse order. With `at_once` the program asks
  for permission to use all of them before it waits, and returns each result after its decision.
- A tool with `subagent`, a list of such acts, is a sub-agent that performs them before the tool returns its result.

Others: {"result": subtype, …further fields}, {"exit": status}, {"signal": number}, {"line": what to print}, {"sleep":
seconds}, {"stderr": text}, {"spawn": a command that keeps running}. An answer may have one of them as `first` or as
`then`; a plan plays it once. An answer may have a `stop_reason`, which the program reports in a delta or in the lines.

Transcripts are written below CLAUDE_CONFIG_DIR, which must be set. A tool appends its name to the file `ledger`, and
each start and user message is a line of JSON in `journal`. Both files are in the script's directory.

Imports the standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

VERSION = "2.1.327"
#: Tools that need no permission.
FREE = ("Agent", "Read")
Act = dict[str, Any]


class Stub:
    """One process of the program."""

    def __init__(self, script: Path, options: argparse.Namespace) -> None:
        document = json.loads(script.read_text())
        self.plan: list[Act] = document["plan"] if isinstance(document, dict) else []
        self.turns: list[list[Act]] = [] if self.plan else document
        self.options, self.beside = options, script.parent
        self.folder = Path(os.environ["CLAUDE_CONFIG_DIR"]) / "projects" / re.sub(r"[^A-Za-z0-9]", "-", os.getcwd())
        self.session_id = self._session()
        self.path = self.folder / f"{self.session_id}.jsonl"
        self.asked = 0
        #: The call of the sub-agent that is active now.
        self.parent: str | None = None
        self.hooks: list[str] = []
        (self.beside / "pid").write_text(str(os.getpid()))
        self.write("journal", json.dumps({"arguments": sys.argv[2:], "environment": sorted(os.environ)}))

    def _session(self) -> str:
        resumed, wanted = self.options.resume, self.options.session_id
        if wanted and resumed and not self.options.fork_session:
            refuse("--session-id can only be used with --continue or --resume if --fork-session is also specified.")
        if wanted:
            UUID(wanted)
            if (self.folder / f"{wanted}.jsonl").exists():
                refuse(f"Session ID {wanted} is already in use.")
        if resumed and not (self.folder / f"{resumed}.jsonl").exists():
            refuse(f"No conversation found with session ID: {resumed}")
        session_id = wanted or (str(uuid4()) if self.options.fork_session or not resumed else resumed)
        if resumed and session_id != resumed:
            earlier = (self.folder / f"{resumed}.jsonl").read_text()
            (self.folder / f"{session_id}.jsonl").write_text(earlier.replace(resumed, session_id))
        return str(session_id)

    def run(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if message["type"] == "control_request":
                hooks = (message["request"].get("hooks") or {}).get("PreToolUse") or []
                self.hooks = [name for hook in hooks for name in hook["hookCallbackIds"]]
                answer = {"subtype": "success", "request_id": message["request_id"], "response": {"commands": []}}
                say({"type": "control_response", "response": answer})
            elif message["type"] == "user":
                self.note("user", message["message"])
                self.write("journal", json.dumps({"user": message["message"]["content"]}))
                self.play(self.plan[self.answers() :] if self.plan else self.turns.pop(0))

    def answers(self) -> int:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return sum(json.loads(line)["type"] == "assistant" for line in lines)

    def play(self, acts: list[Act]) -> None:
        self.say("system", subtype="init", cwd=os.getcwd(), tools=[], model="stub", claude_code_version=VERSION)
        for act in acts:
            self.perform(act)
            result = act if "result" in act else act.get("then") or {}
            if "result" in result:
                self.end(result["result"], {name: value for name, value in result.items() if name != "result"})
                return
        self.end("success", {})

    def perform(self, act: Act) -> None:
        self.do(act.get("first") or {})
        if "text" in act:
            self.answer([{"type": "text", "text": act["text"]}], act)
        elif "tool" in act or "tools" in act:
            self.use_tools(act.get("tools") or [act], act)
        else:
            self.do(act)

    def delegate(self, call: Act, acts: list[Act]) -> None:
        """Play the acts of a sub-agent, with a separate transcript file."""
        before, self.parent = self.parent, call["id"]
        self.say("user", message={"role": "user", "content": [{"type": "text", "text": call["input"]["prompt"]}]})
        for act in acts:
            self.perform(act)
        self.parent = before

    def do(self, act: Act) -> None:
        """Perform an act that is not an answer."""
        match act:
            case {"exit": status}:
                sys.exit(status)
            case {"signal": number}:
                os.kill(os.getpid(), number)
            case {"line": line}:
                sys.stdout.write(line)
                sys.stdout.flush()
            case {"sleep": seconds}:
                time.sleep(seconds)
            case {"stderr": text}:
                print(text, file=sys.stderr, flush=True)
            case {"spawn": command}:
                subprocess.Popen(command)

    def use_tools(self, tools: list[Act], act: Act) -> None:
        calls = [
            {"type": "tool_use", "id": f"toolu_{uuid4().hex}", "name": tool["tool"], "input": tool["input"]}
            for tool in tools
        ]
        self.answer(calls, act)
        if act.get("at_once"):
            self.use_at_once({call["id"]: (call, tool) for call, tool in zip(calls, tools, strict=True)})
            return
        results = [self.use_tool(call, tool, self.permission(call)) for call, tool in zip(calls, tools, strict=True)]
        for result in reversed(results):
            self.tell(result)

    def tell(self, result: Act) -> None:
        content = {"role": "user", "content": [result]}
        self.say("user", message=content)
        self.note("user", content)

    def use_at_once(self, calls: dict[str, tuple[Act, Act]]) -> None:
        """Request permission for all calls, and use each tool when its decision arrives."""
        open_questions = {}
        for call, tool in calls.values():
            questions = self.questions(call)
            open_questions[self.send(next(questions), call)] = (questions, call, tool)
        while open_questions:
            request_id, verdict = self.next_answer()
            questions, call, tool = open_questions.pop(request_id)
            try:
                open_questions[self.send(questions.send(verdict), call)] = (questions, call, tool)
            except StopIteration as decided:
                self.tell(self.use_tool(call, tool, decided.value))

    def use_tool(self, call: Act, tool: Act, verdict: Act) -> Act:
        denied = verdict["behavior"] == "deny"
        if not denied:
            self.write("ledger", tool["tool"])
            self.do(tool.get("meanwhile") or {})
            if "subagent" in tool:
                self.delegate(call, tool["subagent"])
        output = verdict["message"] if denied else tool["output"].format(**verdict.get("updatedInput", call["input"]))
        return {"type": "tool_result", "tool_use_id": call["id"], "content": output, "is_error": denied}

    def permission(self, call: Act) -> Act:
        """Return whether the program may use a tool."""
        questions, verdict = self.questions(call), None
        while True:
            try:
                request_id = self.send(questions.send(verdict), call)
            except StopIteration as decided:
                return dict(decided.value)
            answered, verdict = self.next_answer()
            assert answered == request_id

    def questions(self, call: Act) -> Generator[Act, Act | None, Act]:
        """Ask the hooks. Then ask the client, if a hook requires it or the tool needs permission."""
        given, must_ask = call["input"], False
        for hook in self.hooks:
            facts = {"hook_event_name": "PreToolUse", "tool_name": call["name"], "tool_input": given}
            verdict = yield {"subtype": "hook_callback", "callback_id": hook, "input": facts}
            decision = (verdict or {}).get("hookSpecificOutput") or {}
            given = decision.get("updatedInput", given)
            if decision.get("permissionDecision") == "deny":
                return {"behavior": "deny", "message": decision["permissionDecisionReason"]}
            if decision.get("permissionDecision") == "allow":
                return {"behavior": "allow", "updatedInput": given}
            must_ask = must_ask or decision.get("permissionDecision") == "ask"
        is_free = call["name"] in [*self.options.allowed, *FREE] and not must_ask
        if is_free or self.options.permission_prompt_tool != "stdio":
            return {"behavior": "allow", "updatedInput": given}
        return (yield {"subtype": "can_use_tool", "tool_name": call["name"], "input": given}) or {}

    def send(self, request: Act, call: Act) -> str:
        self.asked += 1
        say(
            {
                "type": "control_request",
                "request_id": f"ask_{self.asked}",
                "request": request | {"tool_use_id": call["id"]},
            }
        )
        return f"ask_{self.asked}"

    def next_answer(self) -> tuple[str, Act]:
        """Return the next answer to a request, with its ID."""
        for line in sys.stdin:
            message = json.loads(line)
            if message["type"] == "control_response":
                return message["response"]["request_id"], dict(message["response"]["response"])
        sys.exit(1)

    def answer(self, content: list[Act], act: Act) -> None:
        if self.options.include_partial_messages and not act.get("whole") and self.parent is None:
            for text in (block["text"] for block in content if block["type"] == "text"):
                delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
                self.say("stream_event", event=delta)
        usage = {"input_tokens": 3, "output_tokens": 5}
        message = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant", "model": "stub"}
        reason, in_deltas = act.get("stop_reason"), self.options.include_partial_messages and not act.get("whole")
        message |= {"content": content, "usage": usage, "stop_reason": None if in_deltas else reason}
        self.note("assistant", message)
        # One line per block, as the program writes them.
        for block in content:
            self.say("assistant", message={**message, "content": [block]}, **act.get("more", {}))
        if reason and in_deltas:
            self.say("stream_event", event={"type": "message_delta", "delta": {"stop_reason": reason}})
        self.do(act.get("then") or {})

    def end(self, subtype: str, more: Act) -> None:
        facts = {"subtype": subtype, "is_error": subtype != "success", "duration_ms": 7, "duration_api_ms": 5}
        facts |= {"num_turns": 1, "total_cost_usd": 0.001, "usage": {}} | more
        if subtype == "success":
            facts.setdefault("result", "done")
        self.say("result", **facts)

    def say(self, kind: str, **fields: Any) -> None:
        parent = {"parent_tool_use_id": self.parent} if kind in ("user", "assistant", "stream_event") else {}
        say({"type": kind, "session_id": self.session_id, "uuid": str(uuid4()), **parent, **fields})

    def write(self, name: str, line: str) -> None:
        with (self.beside / name).open("a") as file:
            file.write(f"{line}\n")

    def note(self, kind: str, message: Act) -> None:
        """Write a line of the transcript, and mirror it if the options request that."""
        entry = {"type": kind, "uuid": str(uuid4()), "sessionId": self.session_id, "message": message}
        if self.parent is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        if self.options.session_mirror:
            say({"type": "transcript_mirror", "filePath": str(self.path), "entries": [entry]})


def say(message: Act) -> None:
    print(json.dumps(message), flush=True)


def refuse(text: str) -> None:
    print(f"Error: {text}", file=sys.stderr)
    sys.exit(1)


def main(script: str, arguments: list[str]) -> None:
    if "-v" in arguments or "--version" in arguments:
        print(f"{VERSION} (Claude Code)")
        return
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--resume", "--session-id", "--permission-prompt-tool", "--allowedTools"):
        parser.add_argument(name, default="")
    for name in ("--fork-session", "--session-mirror", "--include-partial-messages"):
        parser.add_argument(name, action="store_true")
    options, _ = parser.parse_known_args(arguments)
    options.allowed = options.allowedTools.split(",")
    Stub(Path(script), options).run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])


def scripted_program(folder: Path, turns: list[list[dict[str, Any]]] | dict[str, Any]) -> Path:
    """Return the path of an executable file in `folder` that plays the turns."""
    script, program = folder / "turns.json", folder / "claude"
    script.write_text(json.dumps(turns))
    command = shlex.join([sys.executable, str(Path(__file__).with_name("stub_cli.py")), str(script)])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)
    return program


@dataclass(frozen=True)
class StubProgram:
    """The folder with the program, its script, its journal and its ledger."""

    folder: Path

    @property
    def journal(self) -> list[dict[str, Any]]:
        path = self.folder / "journal"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def starts(self) -> list[list[str]]:
        """The arguments of each start."""
        return [entry["arguments"] for entry in self.journal if "arguments" in entry]

    @property
    def heard(self) -> list[Any]:
        """The user messages that the stub received, in order."""
        return [entry["user"] for entry in self.journal if "user" in entry]

    @property
    def ledger(self) -> list[str]:
        """Return the tools that ran, in order."""
        path = self.folder / "ledger"
        return path.read_text().split() if path.exists() else []

    def script(self, acts: list[dict[str, Any]]) -> None:
        """Make the stub follow a plan."""
        scripted_program(self.folder, {"plan": acts})

    def script_turns(self, *turns: list[dict[str, Any]]) -> None:
        """Make the stub play a turn for each user message."""
        scripted_program(self.folder, list(turns))
