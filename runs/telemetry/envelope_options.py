"""The option of sinks that send envelopes: the names of the events in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field

from runs.models.telemetry import TEST
from runs.telemetry.hook_envelopes import LOG_TYPES, hook_envelopes
from runs.telemetry.sink_kind import Envelope, OutgoingEvent, SinkKind, SinkOptions, SinkTarget


class EnvelopeDialect(StrEnum):
    """The names of events in envelopes."""

    HOOKS = "hooks"  # agent_start, turn_start, pre_tool_use and so on
    LOG = "log"  # run.started, llm.turn.start, tool.start and so on, with all other events


class EnvelopeOptions(SinkOptions):
    """The option that all kinds with envelopes have."""

    #: The names of events: hook names or log names.
    dialect: Annotated[EnvelopeDialect, Field(strict=False)] = EnvelopeDialect.HOOKS


class EnvelopeKind(SinkKind):
    """A kind that sends envelopes in the dialect of its options."""

    options_class: ClassVar[type[SinkOptions]] = EnvelopeOptions

    def types_of(self, options: Mapping[str, Any], selected: Collection[str]) -> Collection[str]:
        """Return the event types to read: without a selection, the types that have hook names, or all."""
        if selected or options.get("dialect") == EnvelopeDialect.LOG:
            return selected
        return LOG_TYPES


def envelopes_of(target: SinkTarget, events: Sequence[OutgoingEvent]) -> list[list[Envelope]]:
    """Return the envelopes of each event."""
    if target.options.dialect == EnvelopeDialect.LOG or any(event.row.type == TEST for event in events):
        return [[event.envelope] for event in events]
    return hook_envelopes(events, is_selected=bool(target.event_types))
