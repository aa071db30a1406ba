"""Runs of any number of events, built by repeating real sessions.

An imported run has messages, calls and events like any import. A live run receives the events of the same sessions one
by one, in the order and form in which an external runner sends them.

Import it after Django is set up, because it imports the product.
"""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from bench.payload import PayloadStep
from bench.stacks import PROJECT
from bench.workspace import Workspace
from timeline import log
from timeline.events import EventType
from timeline.log import Entry
from timeline.models import Source

BATCH = 500
DELTAS = 3
#: The turn's start, pieces, message and end; the call's start, output, end and message.
PER_STEP = 3 + DELTAS + 4
#: The package contains these recorded sessions.
RECORDINGS = Path(__file__).resolve().parent.parent / "runs" / "fixtures" / "data"
_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ID = re.compile(_UUID.pattern + rb"|\b(?:toolu|msg|req|call)_(?=[A-Za-z]*[0-9])[A-Za-z0-9]+")
SESSIONS = ("claude-code-5c", "claude-code-7e", "claude-code-b6")


def imported(workspace: Workspace, session: Path, count: int) -> UUID:
    """Import a session whose lines are repeated until it has at least `count` events. Return the ID of its run."""
    once = _import(workspace, session, 1)
    copy = max(log.events_of(once).count() - 2, 1)
    return once if copy >= count else _import(workspace, session, -(-count // copy))


def fill(log_id: UUID, count: int) -> None:
    """Append the first `count` events."""
    for first in range(1, count + 1, BATCH):
        with transaction.atomic():
            numbers = range(first, min(first + BATCH, count + 1))
            log.append(log_id, [entry(number) for number in numbers], source=Source.INGEST)


def entry(number: int) -> Entry:
    """Return event `number`, counted from 1. The texts of the recordings need no redaction."""
    step, position = divmod(number - 1, PER_STEP)
    type_, texts = events_of_step(step % len(_steps()))[position]
    if "call_id" in texts:
        texts = texts | {"call_id": f"{texts['call_id']}-{step}"}
    return Entry(texts, type_, step=step + 1, clean=True)


@cache
def events_of_step(step: int) -> list[tuple[EventType, dict[str, Any]]]:
    """Return the events of one step. Contents are in the payloads, as for external runs."""
    recorded_step = _steps()[step]
    call = {"call_id": recorded_step.call_id, "tool_name": recorded_step.tool}
    counts = {"input_tokens": 1800 + step, "output_tokens": 260, "duration_ms": 3400, "finish_reason": "tool_use"}
    return [
        (EventType.LLM_TURN_START, {"model": "recorded"}),
        *[(EventType.LLM_TEXT_DELTA, {"text": piece, "index": at}) for at, piece in enumerate(_pieces(recorded_step))],
        (EventType.MESSAGE_ADDED, {"role": "assistant", "content": recorded_step.text}),
        (EventType.LLM_TURN_END, {"model": "recorded", "tool_calls": 1, **counts}),
        (EventType.TOOL_START, {**call, "arguments": recorded_step.arguments}),
        (EventType.TOOL_OUTPUT, {"call_id": recorded_step.call_id, "text": recorded_step.output}),
        (EventType.TOOL_END, {**call, "status": "completed", "duration_ms": 42, "output": recorded_step.output}),
        (EventType.MESSAGE_ADDED, {"role": "tool_result", "preview": recorded_step.output[:200], "truncated": True}),
    ]


@lru_cache(maxsize=1)
def _steps() -> list[PayloadStep]:
    """Return a step for each tool call of the recorded sessions."""
    steps = []
    for name in SESSIONS:
        for call in json.loads((RECORDINGS / f"{name}.json").read_text())["calls"]:
            for part in call["output"].get("message", {}).get("parts", []):
                if part["part_kind"] != "tool-call":
                    continue
                call_id, tool, arguments = part["tool_call_id"], part["tool_name"], part["args"]
                output = _plain(call.get("tools", {}).get(call_id, {}).get("output"))
                steps.append(PayloadStep(call_id, call["output"].get("text") or tool, tool, arguments, output))
    return steps


def _plain(output: Any) -> str:
    return output if isinstance(output, str) else json.dumps(output)


def _pieces(step: PayloadStep) -> list[str]:
    """Return the text in exactly DELTAS pieces."""
    size = -(-len(step.text) // DELTAS)
    return [step.text[at * size : (at + 1) * size] for at in range(DELTAS)]


def _import(workspace: Workspace, session: Path, copies: int) -> UUID:
    """Import `copies` repetitions of a session as one file. Return the ID of its run."""
    from agentops.accounts.models import Project
    from runs.external.import_runs import import_file
    from runs.external.importers import formats
    from runs.external.importers.base import ImportFile

    project, _ = Project.objects.get_or_create(slug=PROJECT, defaults={"name": PROJECT})
    path = workspace.folder / f"session-{copies}.jsonl"
    _write_repeated(session, path, copies)
    file = ImportFile.open(path)
    with transaction.atomic():
        with connection.cursor() as cursor:
            # On a slow machine, reading such a file takes longer than the idle timeout of a transaction.
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        report = import_file(project, file, formats.find(file, ""), by="bench")
    path.unlink()
    return max(report.runs, key=lambda run: report.events_of[run.pk]).pk


def _write_repeated(recorded: Path, file: Path, copies: int) -> None:
    """Write one session that repeats the lines of a recorded one with new IDs, so that no line is a duplicate."""
    lines = [line + b"\n" for line in recorded.read_bytes().splitlines()]
    session = _UUID.search(b"".join(line for line in lines if b"session" in line))
    same = {session[0]: _other_id(str(copies), session)} if session else {}
    with file.open("wb") as target:
        for turn in range(copies):
            known, salt = dict(same), f"{copies}-{turn}"
            target.writelines(_ID.sub(partial(_renamed, known, salt), line) for line in lines)


def _renamed(known: dict[bytes, bytes], salt: str, match: re.Match[bytes]) -> bytes:
    return known.setdefault(match[0], _other_id(salt, match))


def _other_id(salt: str, match: re.Match[bytes]) -> bytes:
    """Return another ID in the same form."""
    digest = sha256(salt.encode() + match[0]).hexdigest().encode()
    if _UUID.fullmatch(match[0]):
        return b"-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))
    return match[0].partition(b"_")[0] + b"_" + digest[:24]
