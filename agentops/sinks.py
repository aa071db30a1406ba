"""The public imports for modules with a custom kind of sink, and for listeners on the site; see docs/guides/sinks.md.

from agentops.sinks import Receipt, SinkKind

class Printer(SinkKind):
    name = "printer"

    def send(self, target, requests):
        for envelope in requests:
            print(envelope["event_type"])
        return Receipt()
"""

from __future__ import annotations

from runs.telemetry.channel import Subscription, subscribe
from runs.telemetry.sink_kind import Envelope, InvalidSink, Receipt, SendFailed, SinkKind, SinkOptions, SinkTarget, post

__all__ = [
    "Envelope",
    "InvalidSink",
    "Receipt",
    "SendFailed",
    "SinkKind",
    "SinkOptions",
    "SinkTarget",
    "Subscription",
    "post",
    "subscribe",
]
