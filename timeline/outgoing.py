"""Masking of secrets in stored texts when they are read.

Events are redacted before they are stored, but possibly by an earlier version with fewer detectors.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import cast

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import JSON
from timeline.models import Event


def indexes_with_secrets(texts: Sequence[str]) -> list[int]:
    """Return the sorted indexes of the texts that contain secrets. Searches all texts at once."""
    spans = REDACTOR.spans("\n".join(texts))
    if not spans:
        return []
    starts = [0, *accumulate(len(text) + 1 for text in texts)]
    indexes = {
        index
        for span in spans
        for index in range(bisect_right(starts, span.begin) - 1, bisect_right(starts, span.end - 1))
    }
    return sorted(indexes)


def mask_events(events: Sequence[Event]) -> Sequence[Event]:
    """Mask the secrets in the payloads of events, in place, and return the events. Nothing is saved."""
    for index in indexes_with_secrets([json.dumps(event.payload, ensure_ascii=False) for event in events]):
        events[index].payload = REDACTOR.clean(cast("JSON", events[index].payload))[0]
    return events
