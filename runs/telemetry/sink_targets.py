"""A sink's options and secrets: encrypted for the table, in plain text for the exporter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.conf import settings

from agentops.accounts.redaction_rules import sealing
from agentops.base.telemetry_settings import EnvironmentSink
from runs.models import Sink
from runs.telemetry.kind_catalogue import kind_of
from runs.telemetry.sink_kind import InvalidSink, SinkKind, SinkTarget

#: The hint of a secret is its last characters. Shorter secrets have no hint.
_MIN_HINTED, _HINT = 16, 4


class SinkUnusable(Exception):
    """A sink cannot be used until it is changed. The text gives the reason, without secrets."""


def target_of(sink: Sink) -> tuple[SinkKind, SinkTarget]:
    """Return the kind and the target of a sink. Raises `SinkUnusable`."""
    try:
        kind = kind_of(sink.kind)
        source = environment_sink(sink.name) if sink.origin == Sink.Origin.ENVIRONMENT else None
        if sink.origin == Sink.Origin.ENVIRONMENT and source is None:
            raise SinkUnusable("this process has no such sink in its environment")
        options = kind.check(source.options if source is not None else sink.config)
        secrets = dict(source.secrets) if source is not None else unsealed(sink)
    except (InvalidSink, sealing.Unreadable) as error:
        raise SinkUnusable(str(error)) from None
    return kind, SinkTarget(sink.pk, sink.name, options, secrets, sink.project_id, tuple(sink.event_types))


def environment_sink(name: str) -> EnvironmentSink | None:
    """Return a sink that the environment of this process configures."""
    return next((sink for sink in settings.AGENTOPS_TELEMETRY.sinks if sink.name == name), None)


def seal_secrets(sink: Sink, secrets: Mapping[str, Any]) -> None:
    """Set the encrypted secrets of a sink that the caller saves."""
    sink.sealed, sink.key_id = sealing.seal(json.dumps(secrets), _owner(sink.pk)) if secrets else (None, "")
    sink.secret_hints = {name: hint_of(value) for name, value in secrets.items()}


def unsealed(sink: Sink) -> dict[str, Any]:
    """Return the secrets of a sink. Raises `sealing.Unreadable`."""
    if sink.sealed is None:
        return {}
    secrets: dict[str, Any] = json.loads(sealing.unseal(bytes(sink.sealed), sink.key_id, _owner(sink.pk)))
    return secrets


def hint_of(value: Any) -> Any:
    """Return a hint of a secret for the interface: its last characters, or those for each of its values."""
    if isinstance(value, Mapping):
        return {name: hint_of(each) for name, each in value.items()}
    if isinstance(value, list):
        return [hint_of(each) for each in value]
    text = str(value)
    return f"••••{text[-_HINT:]}" if len(text) >= _MIN_HINTED else "••••"


def _owner(sink_id: UUID) -> str:
    return f"sink:{sink_id}"
