"""The fuzz targets. Each takes bytes, and raises if the product mishandles them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
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
from timeline.dialects.agent_output import WholeTexts, agent_events
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
