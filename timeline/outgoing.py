"""Secrets in texts that leave the record: one search through many texts finds those that need a closer look.

Events were redacted before they were stored, but by the detectors of that day, and a name that a model made up may have
been stored with them unchanged.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import cast

from timeline.models import Event
from timeline.redaction.redact import DEFAULT as REDACTOR
from timeline.redaction.redact import JSON


def suspects(texts: Sequence[str]) -> list[int]:
    """The places of the texts in which something looks like a secret, each once and in order."""
    spans = REDACTOR.spans("\n".join(texts))
    if not spans:
        return []
    starts = [0, *accumulate(len(text) + 1 for text in texts)]
    places = {
        place
        for span in spans
        for place in range(bisect_right(starts, span.begin) - 1, bisect_right(starts, span.end - 1))
    }
    return sorted(places)


def masked(events: Sequence[Event]) -> Sequence[Event]:
    """The same events, their payloads without secrets: changed in memory, never in the record."""
    for place in suspects([json.dumps(event.payload, ensure_ascii=False) for event in events]):
        events[place].payload = REDACTOR.clean(cast("JSON", events[place].payload))[0]
    return events
