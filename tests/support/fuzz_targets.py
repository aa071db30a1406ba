"""The fuzz targets, their seeds, and the mutation of their inputs.

A target takes bytes, and raises if the product mishandles them. Seeds are recordings with short lists and texts, and
events of every type. A mutation changes JSON at one place, so that most inputs get past the parser.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from pydantic_ai.messages import ModelMessagesTypeAdapter

from agentops.base.http import strict_json
from agentops.base.http.strict_json import NotJson
from agentops.base.redaction.redact import BARE, DEFAULT
from agentops.base.refusals import Refusal
from runs.external.event_input import IncomingEvent, RejectedEvent
from runs.external.importers.base import ImportedRun, ImportFile, ImportRefused
from runs.external.importers.formats import BUILTIN, find
from runs.external.ingest import read_any
from runs.external.otlp import log_events, received, span_facts, wire
from runs.providers.messages import canonical
from timeline.agent_dialect_output import WholeTexts, agent_events
from timeline.events import EVENT_TYPES, Payload
from timeline.models import Event

#: Maximum characters of an error message, which repeats only the start of a value.
MAX_ERROR = 2_000


def json_text(data: bytes) -> None:
    """Check that the strict parser refuses the bytes, or returns the same as the standard parser."""
    for limits in (strict_json.BODY, strict_json.FILE):
        try:
            value = strict_json.parse(data, limits)
        except NotJson as error:
            _check_refusal(error)
            is_wrong = error.code == "invalid_json" and limits is strict_json.BODY and _is_json(data)
            assert not is_wrong, "valid JSON was refused"
            continue
        assert value == json.loads(data.decode(), object_pairs_hook=_without_duplicates)
        assert strict_json.parse(json.dumps(value), limits) == value
        if not limits.lone_surrogates:
            json.dumps(value, ensure_ascii=False).encode()


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    assert len(dict(pairs)) == len(pairs), "a duplicate key was accepted"
    return dict(pairs)


def event(data: bytes) -> None:
    """Check that an event is rejected, or can be stored, repeated and shown."""
    try:
        document = strict_json.parse(data)
        read = read_any(document)
    except (NotJson, RejectedEvent) as error:
        _check_refusal(error)
        return
    for each in (read, *read.following):
        _check_storable(each)
    assert read_any(json.loads(json.dumps(document))) == read, "read differently the second time"


def file(data: bytes) -> None:
    """Check that a file is refused by name, or is read as the same runs and events each time."""
    imported = ImportFile("file", data)
    try:
        importer = find(imported)
        items = list(importer.read(imported))
    except ImportRefused as error:
        _check_refusal(error, begin="file")
        return
    references: set[str] = set()
    for item in items:
        if isinstance(item, ImportedRun):
            assert not item.parent_ref or item.parent_ref != item.run_ref
            _check_text(item.run_ref, item.agent, item.model, item.title, item.session_id, item.error, *item.labels)
            references.add(item.run_ref)
            continue
        assert item.run_ref in references, "an event before its run"
        assert item.event_id, "imported again, it would be stored again"
        _check_storable(item)
    again = list(importer.read(ImportFile("file", data)))
    assert [_identity(item) for item in again] == [_identity(item) for item in items]


def formats(data: bytes) -> None:
    """Check that every format refuses or reads the file."""
    for importer in BUILTIN:
        try:
            for _ in importer.read(ImportFile("file", data)):
                pass
        except ImportRefused as error:
            _check_refusal(error)


def otlp(data: bytes) -> None:
    """Check that an OTLP body is refused, or each entry is either rejected or storable."""
    for signal in wire.Signal:
        for encoding in wire.Encoding:
            try:
                request = wire.decode(signal, encoding, data)
            except Refusal as error:
                wire.encode_error(encoding, error.status, str(error))
                continue
            report = received.ExportReport()
            if signal is wire.Signal.TRACES:
                for span in received.spans_of(request, report):
                    _check_facts(span_facts.facts_of(span, span_facts.kind_of(span)), span.span_id, span.parent_id)
            elif signal is wire.Signal.LOGS:
                for record in received.logs_of(request, report):
                    key = log_events.key_of(record)
                    if key is not None:
                        _check_facts(log_events.log_facts(record), log_events.kind_of_log(record), key)
                        log_events.time_of(record)
            else:
                wire.count_points(request)
            wire.encode_success(signal, encoding, rejected=report.rejected, message=report.message())


TARGETS: dict[str, Callable[[bytes], None]] = {
    "json": json_text,
    "event": event,
    "file": file,
    "formats": formats,
    "otlp": otlp,
}


def _check_facts(facts: Any, *texts: str | None) -> None:
    """Check that the contents of an entry can be stored: JSON without NUL, and identifiers that fit their columns."""
    cleaned, _ = DEFAULT.clean(facts)
    assert BARE.clean(cleaned) == (cleaned, set()), "not storable"
    assert math.isfinite(len(canonical(cleaned)))
    _check_text(*(text or "" for text in texts))


def _check_refusal(error: NotJson | RejectedEvent | ImportRefused, *, begin: str = "") -> None:
    assert str(error).startswith(begin)
    assert len(str(error)) < MAX_ERROR
    assert getattr(error, "status", 422) in (400, 403, 404, 409, 413, 422)


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _check_storable(each: IncomingEvent) -> None:
    """Check that columns can store the event without NUL and lone surrogates, and that its payload becomes JSON."""
    payload: Any = each.payload.model_dump(mode="json") if isinstance(each.payload, Payload) else dict(each.payload)
    _check_text(each.run_ref, each.type, each.event_id or "", each.node_id)
    if each.type in EVENT_TYPES:
        assert BARE.clean(payload) == (payload, set()), "not storable"
    cleaned, _ = DEFAULT.clean(payload)
    assert math.isfinite(len(canonical(cleaned)))
    row = Event(log_id=UUID(int=1), seq=1, type=each.type, payload=cleaned, run_kind="session", phase="running")
    row.ts = each.ts or row.ts
    json.dumps(agent_events(row, WholeTexts()) if row.ts else {})
    if each.message is not None:
        ModelMessagesTypeAdapter.dump_json([each.message])


def _check_text(*texts: str) -> None:
    for text in texts:
        assert "\0" not in text
        text.encode()


def _identity(item: ImportedRun | IncomingEvent) -> tuple[str, ...]:
    return (item.run_ref,) if isinstance(item, ImportedRun) else (item.run_ref, item.type, item.event_id or "")


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


Mutate = Callable[[bytes, int], bytes]
#: How often raw bytes are mutated instead of a JSON value.
BYTES_SHARE = 0.1
LINES_SHARE = 0.1
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 1e308, -0.0, 2**31, 2**63, 10**30, 1_700_000_000, 1_700_000_000_000),
    *("", " ", "x", "\u0000", "a\ud800", "\u202e", "é" * 300, "n" * 5000, "~1/~0", "null", "1e5", "[]", "{}", "-"),
    *("2026-01-01T00:00:00Z", "0000-00-00", "9999-12-31T23:59:59+23:59", "1970-01-01T00:00:00.123456789Z"),
    *("sk-ant-api03-" + "A" * 95, "Bearer abcdefghijklmnop", "password=hunter2", "data:image/png;base64,AAAA"),
    *([], {}, [[]], [{}], [None], [1, "x"], {"a": 1}, {"type": "text"}, {"": ""}, {"type": "tool_use"}),
]


def mutated(data: bytes, max_size: int, seed: int, mutate: Mutate) -> bytes:
    """Return a mutated copy of at most `max_size` bytes. `mutate` changes raw bytes."""
    dice = Random(seed)
    lines = data.split(b"\n")
    number = dice.randrange(len(lines))
    if dice.random() < BYTES_SHARE:
        return mutate(data, max_size)
    if len(lines) > 1 and dice.random() < LINES_SHARE:
        return b"\n".join(_moved(lines, number, dice))[:max_size]
    try:
        value = json.loads(lines[number])
    except (ValueError, RecursionError):
        return mutate(data, max_size)
    lines[number] = json.dumps(_changed(value, dice)).encode()
    return b"\n".join(lines)[:max_size]


def _moved(lines: list[bytes], number: int, dice: Random) -> list[bytes]:
    line = lines.pop(number)
    for _ in range(dice.randrange(3)):
        lines.insert(dice.randrange(len(lines) + 1), line)
    return lines


def _changed(value: Any, dice: Random) -> Any:
    """Change one place. Deep places are more likely."""
    if isinstance(value, dict) and value and dice.random() < 0.85:
        name = dice.choice(list(value))
        match dice.randrange(12):
            case 0:
                del value[name]
            case 1:
                value[dice.choice([*value, "type", "id", "content", name.upper(), ""])] = value.pop(name)
            case 2:
                value[name] = value[dice.choice(list(value))]
            case _:
                value[name] = _changed(value[name], dice)
        return value
    if isinstance(value, list) and value and dice.random() < 0.85:
        index = dice.randrange(len(value))
        match dice.randrange(8):
            case 0:
                del value[index]
            case 1:
                value.insert(index, value[dice.randrange(len(value))])
            case 2:
                value.reverse()
            case _:
                value[index] = _changed(value[index], dice)
        return value
    return _other(value, dice)


def _other(value: Any, dice: Random) -> Any:
    match dice.randrange(4):
        case 0 if isinstance(value, str):
            return value[: dice.randrange(len(value) + 1)]
        case 1 if isinstance(value, int | float):
            return -value
        case 2:
            return dice.choice([[value], {"type": value}, {"content": value}, [value, value]])
    return dice.choice(VALUES)
