"""Send runs as traces to the batch API of older Langfuse servers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import orjson

from agentops.base.http.guarded_client import HttpAnswer
from runs.models.telemetry import TEST
from runs.telemetry import guarded_posts
from runs.telemetry.kinds.otlp_sinks import LangfuseOptions, langfuse_credentials
from runs.telemetry.sink_kind import OutgoingEvent, Receipt, SendFailed, SinkKind, SinkTarget
from runs.telemetry.traces.langfuse_events import batches_of
from runs.telemetry.traces.observing import NEEDED, observe, test_observation

PATH = "/api/public/ingestion"
#: Maximum number of event errors in the message.
_SHOWN = 5
#: The start of the list of errors in an answer, and the separator between two errors.
_ERRORS, _BETWEEN = re.compile(r'"errors"\s*:\s*\[\s*'), re.compile(r"\s*,\s*")


class LangfuseBatchSink(SinkKind):
    """Langfuse events, created when an observation begins and updated when it has ended."""

    name = "langfuse_batch"
    title = "traces to Langfuse by its batch API"
    options_class = LangfuseOptions
    secret_names: ClassVar[Mapping[str, bool]] = {"secret_key": True}
    needed_types = NEEDED

    def render(self, target: SinkTarget, events: Sequence[OutgoingEvent], message_id: str) -> Sequence[bytes]:
        """Return the bodies of the requests."""
        is_test = events[0].row.type == TEST
        return batches_of([test_observation(events[0])] if is_test else observe(events))

    def send(self, target: SinkTarget, requests: Sequence[bytes]) -> Receipt:
        """Send the requests one after the other. Permanently refused events are named; the others are stored."""
        url = target.options.base_url.rstrip("/") + PATH
        headers = {**langfuse_credentials(target), "Content-Type": "application/json"}
        refused: list[str] = []
        receipt = Receipt()
        for body in requests:
            answer = guarded_posts.post(url, body, headers)
            receipt = guarded_posts.receipt_of(answer)
            refused += refused_events(answer)
        return Receipt(receipt.status, receipt.response, refused)


def refused_events(answer: HttpAnswer) -> list[str]:
    """Return the permanently refused events. Raises `SendFailed` if events have to be sent again."""
    entries = [error for error in _errors_of(answer) if isinstance(error, dict)]
    texts = [f"{each.get('id')}: {each.get('status')} {each.get('message') or ''}".strip() for each in entries]
    if any(_is_passing(each.get("status")) for each in entries):
        raise SendFailed(f"Langfuse could not store {len(entries)} events: {texts[0]}", status=answer.status)
    return [*texts[:_SHOWN], *(f"{len(texts) - _SHOWN} more" for _ in texts[_SHOWN : _SHOWN + 1])]


def _errors_of(answer: HttpAnswer) -> list[Any]:
    """Return the errors in an answer. From a long answer, which was cut, return the complete ones."""
    if answer.truncated:
        return list(_errors_at_the_beginning(answer.body.decode(errors="replace")))
    try:
        errors = orjson.loads(answer.body).get("errors")
    except (ValueError, AttributeError):
        return []  # the answer of another server
    return errors if isinstance(errors, list) else []


def _errors_at_the_beginning(text: str) -> Iterator[Any]:
    begin = _ERRORS.search(text)
    while begin is not None:
        try:
            error, end = json.JSONDecoder().raw_decode(text, begin.end())
        except (ValueError, RecursionError):  # cut, or nested too deeply
            return
        yield error
        begin = _BETWEEN.match(text, end)


def _is_passing(status: object) -> bool:
    """Return whether the same event may be accepted later."""
    return isinstance(status, int) and (status == 429 or status >= 500)
