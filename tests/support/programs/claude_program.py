"""A program that speaks Claude Code's stream-json protocol, and calls a model at ANTHROPIC_BASE_URL.

It is for tests of claude-agent-sdk, whose own program has 370 MB. It knows the tool Bash, in-process MCP servers, the
hooks PreToolUse and PostToolBatch, permission requests, transcripts below CLAUDE_CONFIG_DIR with their mirror, and how
Claude Code 2.1.330 continues an interrupted turn, a deferred call and a queued message.

Imports the standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

Json = dict[str, Any]
VERSION = "2.1.330"
CONTINUE = "Continue from where you left off."
HOOKS = ("PreToolUse", "PostToolUse", "PostToolBatch")


class ClaudeProgram:
    """One process of the program, with one session."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.hooks: dict[str, list[tuple[str | None, str]]] = {}
        self.servers: list[str] = []
        self.tools: dict[str, tuple[str, str]] = {}
        self.session_id = options.resume or options.session_id or str(uuid4())
        folder = re.sub(r"[^A-Za-z0-9]", "-", os.getcwd())
        self.path = Path(os.environ["CLAUDE_CONFIG_DIR"]) / "projects" / folder / f"{self.session_id}.jsonl"
        self.entries: list[Json] = []
        if options.resume:
            if not self.path.exists():
                sys.exit(f"No conversation found with session ID: {options.resume}")
            self.entries = [json.loads(line) for line in self.path.read_text().splitlines()]
        self.input: queue.Queue[Json | None] = queue.Queue()
        #: Messages of people that no turn has taken.
        self.queued: list[Any] = []
        self.answers: dict[str, queue.Queue[Any]] = {}
        self.results: dict[str, Json] = {}
        self.turns = 0
        self.usage: dict[str, int] = {}

    # --- The protocol ---

    def run(self) -> None:
        threading.Thread(target=self.read, daemon=True).start()
        is_first = True
        while (message := self.next_input(is_first)) is not None:
            is_first = False
            if message["type"] == "control_request":
                self.control(message)
                if message["request"]["subtype"] == "initialize":
                    self.connect_servers()
                    self.continue_session()
            elif message["type"] == "user":
                self.turn(message["message"]["content"])

    def next_input(self, is_first: bool) -> Json | None:
        if self.queued and not is_first:
            return {"type": "user", "message": {"content": self.queued.pop(0)}}
        return self.input.get()

    def read(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if message["type"] == "control_response":
                response = message["response"]
                self.answers.pop(response["request_id"]).put(response)
            else:
                self.input.put(message)
        self.input.put(None)
        os._exit(0)

    def control(self, message: Json) -> None:
        request = message["request"]
        if request["subtype"] == "initialize":
            for event, matchers in (request.get("hooks") or {}).items():
                pairs = [(one.get("matcher"), hook) for one in matchers for hook in one["hookCallbackIds"]]
                self.hooks[event] = pairs
        response = {"commands": [], "hook_on_failure_supported": True}
        answer = {"subtype": "success", "request_id": message["request_id"], "response": response}
        say({"type": "control_response", "response": answer})

    def ask(self, **request: Any) -> Any:
        """Send a request to the SDK, and return its answer."""
        request_id, answer = str(uuid4()), queue.Queue[Any]()
        self.answers[request_id] = answer
        say({"type": "control_request", "request_id": request_id, "request": request})
        response = answer.get()
        if response["subtype"] == "error":
            raise RuntimeError(response["error"])
        return response["response"]

    def ask_hooks(self, event: str, call_id: str | None, tool: str = "", **facts: Any) -> list[Json]:
        outputs = []
        given = {"hook_event_name": event, "session_id": self.session_id, "cwd": os.getcwd(), **facts}
        for matcher, hook in self.hooks.get(event, ()):
            if not matcher or re.fullmatch(matcher, tool):
                outputs.append(self.ask(subtype="hook_callback", callback_id=hook, input=given, tool_use_id=call_id))
        return outputs

    def frame(self, kind: str, **fields: Any) -> None:
        say({"type": kind, "session_id": self.session_id, "uuid": str(uuid4()), "parent_tool_use_id": None, **fields})

    # --- In-process servers ---

    def connect_servers(self) -> None:
        config = json.loads(self.options.mcp_config or "{}").get("mcpServers", {})
        for name in (name for name, server in config.items() if server.get("type") == "sdk"):
            about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
            self.mcp(name, "initialize", about)
            self.ask(
                subtype="mcp_message",
                server_name=name,
                message={"jsonrpc": "2.0", "method": "notifications/initialized"},
            )
            for tool in self.mcp(name, "tools/list", {})["tools"]:
                self.tools[f"mcp__{name}__{tool['name']}"] = (name, tool["name"])

    def mcp(self, server: str, method: str, params: Json) -> Json:
        message = {"jsonrpc": "2.0", "id": str(uuid4()), "method": method, "params": params}
        answer = self.ask(subtype="mcp_message", server_name=server, message=message)["mcp_response"]
        return dict(answer["result"])

    # --- The transcript ---

    def note(self, kind: str, **members: Any) -> Json:
        """Write an entry of the transcript, and mirror it."""
        chained = [entry for entry in self.entries if "uuid" in entry]
        entry = {
            "parentUuid": chained[-1]["uuid"] if chained else None,
            "isSidechain": False,
            "type": kind,
            "uuid": str(uuid4()),
            "timestamp": datetime.now(UTC).isoformat(),
            "sessionId": self.session_id,
            "version": VERSION,
            "cwd": os.getcwd(),
            **members,
        }
        self.entries.append(entry)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        if self.options.session_mirror:
            say({"type": "transcript_mirror", "filePath": str(self.path), "entries": [entry]})
        return entry

    def messages(self) -> list[Json]:
        """Return the conversation in the transcript as messages of the model's API."""
        messages: list[Json] = []
        answered: str | None = None
        for entry in self.entries:
            if entry["type"] == "attachment" and entry["attachment"]["type"] == "queued_command":
                prompt = entry["attachment"]["prompt"]
                text = f"<system-reminder>\nThe user sent a new message:\n{prompt}\n</system-reminder>"
                role, content, message_id = "user", [{"type": "text", "text": text}], None
            elif entry["type"] in ("user", "assistant"):
                message = entry["message"]
                role, content, message_id = message["role"], message["content"], message.get("id")
                content = [{"type": "text", "text": content}] if isinstance(content, str) else content
            else:
                continue
            is_same = bool(messages) and messages[-1]["role"] == role and (role == "user" or answered == message_id)
            if is_same:
                messages[-1]["content"] += content
            else:
                messages.append({"role": role, "content": list(content)})
            answered = message_id
        return messages

    def open_calls(self) -> list[Json]:
        """Return the calls of the transcript that have no result."""
        blocks = [block for message in self.messages() for block in message["content"]]
        done = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        return [block for block in blocks if block["type"] == "tool_use" and block["id"] not in done]

    # --- Turns ---

    def continue_session(self) -> None:
        """Continue an interrupted turn, or execute a deferred call."""
        deferred = [
            entry["attachment"]["toolUseID"]
            for entry in self.entries
            if entry["type"] == "attachment" and entry["attachment"]["type"] == "hook_deferred_tool"
        ]
        calls = [call for call in self.open_calls() if call["id"] in deferred]
        if calls:
            self.use(calls)
        elif not os.environ.get("CLAUDE_CODE_RESUME_INTERRUPTED_TURN") or not self.entries:
            return
        messages = self.messages()
        if messages[-1]["role"] == "assistant":
            return
        if messages[-1]["content"][-1]["type"] == "tool_result":
            self.note("user", message={"role": "user", "content": CONTINUE}, isMeta=True)
        self.loop()

    def turn(self, content: Any) -> None:
        self.note("user", message={"role": "user", "content": content})
        self.loop()

    def loop(self) -> None:
        """Call the model and its tools until an answer has no calls."""
        self.frame("system", subtype="init", cwd=os.getcwd(), tools=sorted(self.tools), model=self.options.model)
        while True:
            try:
                answer = self.call_model()
            except urllib.error.HTTPError as error:
                text = f"API Error: {error.code} {error.read().decode()}"
                content = [{"type": "text", "text": text}]
                message = {"id": str(uuid4()), "role": "assistant", "model": "<synthetic>", "content": content}
                self.frame("assistant", message=message, error="invalid_request")
                self.end(text, is_error=True)
                return
            calls = [block for block in answer["content"] if block["type"] == "tool_use"]
            if not calls:
                self.end("".join(block.get("text", "") for block in answer["content"]), is_error=False)
                return
            self.use(calls)

    def call_model(self) -> Json:
        body = {"model": self.options.model, "max_tokens": 1000, "messages": self.messages()}
        url = f"{os.environ['ANTHROPIC_BASE_URL']}/v1/messages"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            answer: Json = json.load(response)
        self.turns += 1
        for kind, number in answer["usage"].items():
            self.usage[kind] = self.usage.get(kind, 0) + number
        self.stream(answer)
        return answer

    def stream(self, answer: Json) -> None:
        self.event({"type": "message_start", "message": {**answer, "content": []}})
        for block in answer["content"]:
            if block["type"] == "text":
                delta = {"type": "text_delta", "text": block["text"]}
                self.event({"type": "content_block_delta", "index": 0, "delta": delta})
            entry = self.note("assistant", message={**answer, "content": [block]})
            self.frame("assistant", uuid=entry["uuid"], message={**answer, "content": [block], "stop_reason": None})
        delta = {"stop_reason": answer["stop_reason"]}
        self.event({"type": "message_delta", "delta": delta, "usage": answer["usage"]})
        self.event({"type": "message_stop"})

    def event(self, event: Json) -> None:
        if self.options.include_partial_messages:
            self.frame("stream_event", event=event)

    def end(self, result: str, *, is_error: bool) -> None:
        names = {
            "input_tokens": "inputTokens",
            "output_tokens": "outputTokens",
            "cache_read_input_tokens": "cacheReadInputTokens",
            "cache_creation_input_tokens": "cacheCreationInputTokens",
        }
        totals = {short: self.usage.get(name, 0) for name, short in names.items()}
        facts = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": self.turns, "total_cost_usd": 0.001}
        facts |= {"usage": {}, "modelUsage": {self.options.model: totals}}
        self.frame("result", subtype="success", is_error=is_error, result=result, **facts)

    # --- Tools ---

    def use(self, calls: list[Json]) -> None:
        """Execute calls one after the other. Then wait for the SDK."""
        used = []
        for call in calls:
            content, is_error = self.use_one(call)
            block = {"type": "tool_result", "tool_use_id": call["id"], "content": content, "is_error": is_error}
            entry = self.note("user", message={"role": "user", "content": [block]}, toolUseResult=content)
            self.frame("user", uuid=entry["uuid"], message=entry["message"])
            used.append({"tool_name": call["name"], "tool_use_id": call["id"], "tool_input": call["input"]})
        self.ask_hooks("PostToolBatch", None, tool_calls=used)
        while not self.input.empty():
            message = self.input.get()
            if message is None:
                sys.exit(0)
            if message["type"] == "user":
                prompt = message["message"]["content"]
                self.note("attachment", attachment={"type": "queued_command", "prompt": prompt})

    def use_one(self, call: Json) -> tuple[Any, bool]:
        name, given = call["name"], call["input"]
        facts = {"tool_name": name, "tool_use_id": call["id"]}
        decisions = set()
        for output in self.ask_hooks("PreToolUse", call["id"], name, tool_input=given, **facts):
            specific = output.get("hookSpecificOutput") or {}
            decision = specific.get("permissionDecision")
            if decision == "deny":
                return f"PreToolUse:{name} hook error: {specific['permissionDecisionReason']}", True
            decisions.add(decision)
            given = specific.get("updatedInput", given)
        if "allow" not in decisions and not self.is_allowed(name):
            request = {"tool_name": name, "input": given, "tool_use_id": call["id"]}
            verdict = self.ask(subtype="can_use_tool", **request)
            if verdict["behavior"] == "deny":
                return verdict["message"], True
            given = verdict["updatedInput"]
        result = self.execute(call["id"], name, given)
        self.ask_hooks("PostToolUse", call["id"], name, tool_input=given, tool_response=result[0], **facts)
        return result

    def is_allowed(self, name: str) -> bool:
        rules = self.options.allowedTools.split(",")
        return any(rule and (name == rule or name.startswith(f"{rule}__")) for rule in rules)

    def execute(self, call_id: str, name: str, given: Json) -> tuple[Any, bool]:
        if name == "Bash":
            done = subprocess.run(["bash", "-c", given["command"]], check=False, capture_output=True, text=True)
            return (done.stdout + done.stderr).rstrip("\n"), done.returncode != 0
        if name not in self.tools:
            return f"No such tool: {name}", True
        server, tool = self.tools[name]
        meta = {"claudecode/toolUseId": call_id}
        result = self.mcp(server, "tools/call", {"name": tool, "arguments": given, "_meta": meta})
        return result["content"], bool(result.get("isError"))


def say(message: Json) -> None:
    with _lock:
        print(json.dumps(message), flush=True)


_lock = threading.Lock()


def main() -> None:
    if "-v" in sys.argv or "--version" in sys.argv:
        print(f"{VERSION} (Claude Code)")
        return
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--resume", "--session-id", "--mcp-config", "--model", "--allowedTools"):
        parser.add_argument(name, default="")
    for name in ("--session-mirror", "--include-partial-messages"):
        parser.add_argument(name, action="store_true")
    options, _ = parser.parse_known_args()
    ClaudeProgram(options).run()


if __name__ == "__main__":
    main()
