"""A program with the stream-json contract of Claude Code's command line, which does what a file says.

    python stub_cli.py SCRIPT [the arguments of the program]

The script is a JSON list of turns; each is a list of acts: {"text": …}, {"tool": name, "input": …, "output": …},
{"result": subtype, …further fields}, {"exit": status}, {"signal": number}. Each user message plays the next turn; a
turn without a result gets one of success. Transcripts are written below CLAUDE_CONFIG_DIR, which must be set.

Imports the standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

VERSION = "2.1.327"
Act = dict[str, Any]


class Stub:
    """One process of the program."""

    def __init__(self, turns: list[list[Act]], options: argparse.Namespace) -> None:
        self.turns, self.options = turns, options
        self.folder = Path(os.environ["CLAUDE_CONFIG_DIR"]) / "projects" / re.sub(r"[^A-Za-z0-9]", "-", os.getcwd())
        self.session_id = self._session()
        self.path = self.folder / f"{self.session_id}.jsonl"
        self.asked = 0

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
                answer = {"subtype": "success", "request_id": message["request_id"], "response": {"commands": []}}
                say({"type": "control_response", "response": answer})
            elif message["type"] == "user":
                self.note("user", message["message"])
                self.play(self.turns.pop(0))

    def play(self, acts: list[Act]) -> None:
        self.say("system", subtype="init", cwd=os.getcwd(), tools=[], model="stub", claude_code_version=VERSION)
        for act in acts:
            if "text" in act:
                self.answer([{"type": "text", "text": act["text"]}])
            elif "tool" in act:
                self.use_tool(act)
            elif "exit" in act:
                sys.exit(act["exit"])
            elif "signal" in act:
                os.kill(os.getpid(), act["signal"])
            else:
                self.end(act["result"], act)
                return
        self.end("success", {})

    def use_tool(self, act: Act) -> None:
        call = {"type": "tool_use", "id": f"toolu_{uuid4().hex}", "name": act["tool"], "input": act["input"]}
        self.answer([call])
        verdict = self.permission(call)
        denied = verdict["behavior"] == "deny"
        output = verdict["message"] if denied else act["output"].format(**verdict.get("updatedInput", call["input"]))
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": output, "is_error": denied}
        content = {"role": "user", "content": [result]}
        self.say("user", message=content, parent_tool_use_id=None)
        self.note("user", content)

    def permission(self, call: Act) -> Act:
        """Ask who drives the program, where it was told to, unless the tool is allowed."""
        if call["name"] in self.options.allowed or self.options.permission_prompt_tool != "stdio":
            return {"behavior": "allow"}
        self.asked += 1
        asked = {
            "subtype": "can_use_tool",
            "tool_name": call["name"],
            "input": call["input"],
            "tool_use_id": call["id"],
        }
        say({"type": "control_request", "request_id": f"ask_{self.asked}", "request": asked})
        for line in sys.stdin:
            message = json.loads(line)
            if message["type"] == "control_response" and message["response"]["request_id"] == f"ask_{self.asked}":
                return dict(message["response"]["response"])
        sys.exit(1)

    def answer(self, content: list[Act]) -> None:
        if self.options.include_partial_messages:
            for text in (block["text"] for block in content if block["type"] == "text"):
                delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
                self.say("stream_event", event=delta, parent_tool_use_id=None)
        usage = {"input_tokens": 3, "output_tokens": 5}
        message = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant", "model": "stub"}
        message |= {"content": content, "usage": usage, "stop_reason": None}
        self.say("assistant", message=message, parent_tool_use_id=None)
        self.note("assistant", message)

    def end(self, subtype: str, more: Act) -> None:
        facts = {"subtype": subtype, "is_error": subtype != "success", "duration_ms": 7, "duration_api_ms": 5}
        facts |= {"num_turns": 1, "total_cost_usd": 0.001, "usage": {}} | more
        if subtype == "success":
            facts.setdefault("result", "done")
        self.say("result", **facts)

    def say(self, kind: str, **fields: Any) -> None:
        say({"type": kind, "session_id": self.session_id, "uuid": str(uuid4()), **fields})

    def note(self, kind: str, message: Act) -> None:
        """Write a line of the transcript, and mirror it where that was asked for."""
        entry = {"type": kind, "uuid": str(uuid4()), "sessionId": self.session_id, "message": message}
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
    Stub(json.loads(Path(script).read_text()), options).run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
