"""The seeds of fuzzing: recordings with short lists and texts, and events of every type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from timeline.events import EVENT_TYPES

#: Size of the largest seed in bytes. Small inputs are tried more often.
MAX_SEED = 20_000
MAX_LINES, MAX_ITEMS, MAX_TEXT = 14, 5, 60
#: Directories of agent recordings.
FORMATS = (
    *("atif", "claude-agent-sdk", "claude-code", "claude-code-synthetic", "codex", "gemini-cli", "inspect"),
    *("langfuse-traces", "mini-swe-agent", "openhands", "swe-agent", "tau-bench"),
)
AGENT_EVENTS: list[dict[str, Any]] = [
    {"type": "agent:start", "runId": "r", "sessionId": "s", "model": "m", "prompt": "p", "nodeId": "n", "ts": 1},
    {"type": "agent:text", "runId": "r", "text": "t"},
    {"type": "agent:tool", "runId": "r", "id": "c", "tool": "bash", "input": {"a": 1}, "output": "o", "error": False},
    {"type": "agent:complete", "runId": "r", "result": "x", "usage": {"input_tokens": 1}, "modelUsage": {"m": {}}},
    {"type": "agent:error", "runId": "r", "error": {"message": "m"}},
    {"type": "run.started", "runId": "r", "event_id": "e", "payload": {"agent": "a"}, "runKind": "job", "step": 1},
    {"type": "message.added", "run_id": "r", "payload": {"role": "user", "content": [{"type": "text", "text": "x"}]}},
    {
        "type": "llm.turn.end",
        "runId": "r",
        "payload": {"text": "t", "thinking": "h", "toolCalls": [{"id": "c", "name": "n", "args": {}}], "usage": {}},
    },
    {"type": "tool.end", "runId": "r", "payload": {"callId": "c", "output": "o", "isError": True}},
    {"type": "x.custom", "runId": "r", "payload": {"a": "\u0000"}},
]


def write_seeds(directory: Path, recordings: Path) -> dict[str, Path]:
    """Write the seeds of each target below `directory`, and return their paths."""
    events = [{"type": type_, "runId": "r", "payload": {}} for type_ in EVENT_TYPES] + AGENT_EVENTS
    files = [shortened_file(path) for name in FORMATS for path in sorted((recordings / name).rglob("*.json*"))]
    files += [shortened_file(path) for path in sorted((recordings / "swe-agent").glob("*.traj"))]
    files = [content for content in files if len(content) <= MAX_SEED]
    bodies = [path.read_bytes() for path in sorted((recordings / "otlp").rglob("*")) if path.suffix in (".json", ".pb")]
    seeds = {
        "json": [b'{"a": [1, -0.0, 1e5, "\\ud83d\\ude00", null]}', *files[:10]],
        "event": [json.dumps(event).encode() for event in events],
        "file": files,
        "formats": files,
        "otlp": [content for content in bodies if len(content) <= MAX_SEED],
    }
    for target, contents in seeds.items():
        (directory / target).mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(contents):
            (directory / target / f"{number:03}").write_bytes(content)
    return {target: directory / target for target in seeds}


def shortened_file(path: Path) -> bytes:
    """Return a recording with few lines, short lists and short texts."""
    content = path.read_bytes()
    try:
        return json.dumps(_shortened(json.loads(content))).encode()
    except ValueError:
        lines = content.splitlines()[:MAX_LINES]
    return b"\n".join(_shortened_line(line) for line in lines) + b"\n"


def _shortened_line(line: bytes) -> bytes:
    try:
        return json.dumps(_shortened(json.loads(line))).encode()
    except ValueError:
        return line[:MAX_TEXT]


def _shortened(value: Any) -> Any:
    if isinstance(value, list):
        return [_shortened(item) for item in value[:MAX_ITEMS]]
    if isinstance(value, dict):
        return {name: _shortened(member) for name, member in value.items()}
    return value[:MAX_TEXT] if isinstance(value, str) else value
