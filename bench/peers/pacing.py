"""Publishes numbered events at a given pace, as each line of stdin orders. Imports nothing from agentops, because peers
use it.

All peers publish the document of the product's JSON stream.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

#: With the number and its name about 280 bytes: a short output of a tool, or a piece of a long one.
TEXT = (
    "The second row of the ledger does not agree with the invoice of the same day: the sum is short by 3.20, which"
    " is the fee that the bank takes for a transfer abroad. I shall look at the other months before I call it a rule,"
    " and then change the report."
)
TYPE = "x.bench.tick"

#: (target, numbers) -> for each number, when others could see its event, by time.monotonic_ns. Publishes one burst.
Publish = Callable[[str, range], list[int]]


def payload(number: int) -> dict[str, Any]:
    return {"text": TEXT, "number": number}


def document(target: str, number: int) -> str:
    """Return the event in its wire format, for servers that neither number nor store events."""
    return json.dumps(
        {
            "seq": number,
            "event_id": f"~{number}",
            "runId": target,
            "runKind": "session",
            "phase": "running",
            "type": TYPE,
            "ts": "2026-01-01T12:00:00.123456Z",
            "step": None,
            "nodeId": None,
            "payload": payload(number) | {"message": f"Custom event {TYPE}"},
            "source": "ingest",
        }
    )


def serve(title: str, publish: Publish) -> None:
    """Report readiness, then publish as ordered by each line of stdin, and print the timestamps."""
    _say({"title": title})
    for line in sys.stdin:
        _say({"stamps": _paced(publish, **json.loads(line))})


def _paced(publish: Publish, *, target: str, first: int, bursts: int, size: int, rate: float) -> list[int]:
    """Publish `rate` bursts per second, of `size` events each, and return the timestamps."""
    stamps: list[int] = []
    began = time.monotonic()
    for turn in range(bursts):
        early = began + turn / rate - time.monotonic()
        if early > 0:
            time.sleep(early)
        stamps += publish(target, range(first + turn * size, first + (turn + 1) * size))
    return stamps


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)
