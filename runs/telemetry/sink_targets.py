"""The kinds of sinks by name, and the options and secrets of a sink.

Secrets are encrypted in the table and decrypted for the exporter. Kinds are built in, or added by packages and modules
of the deployment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard, cast
from uuid import UUID

from django.conf import settings

from agentops.accounts import sealing
from agentops.base.catalogue import Catalogue, CatalogueEntry, Extension, ExtensionFailed, build, imported, members_of
from runs.models import Sink
from runs.telemetry.sink_kind import InvalidSink, SinkKind, SinkTarget

#: Dotted paths by name, so that a worker imports only the kinds that it uses.
BUILTIN = {
    "http": "runs.telemetry.http_sinks.HttpSink",
    "jsonl": "runs.telemetry.jsonl_sink.JsonlSink",
    "langfuse_batch": "runs.telemetry.langfuse_batch_sink.LangfuseBatchSink",
    "langfuse_otlp": "runs.telemetry.http_sinks.LangfuseOtlpSink",
    "otlp": "runs.telemetry.http_sinks.OtlpSink",
    "webhook": "runs.telemetry.http_sinks.WebhookSink",
}
WEBHOOK = "webhook"


class KindCatalogue(Catalogue[SinkKind]):
    """One object of each kind, which serves all sinks of the kind."""

    kind = "sink"
    group = "agentops.sinks"
    setting = "AGENTOPS_SINK_MODULES"

    def modules(self) -> Sequence[str]:
        return cast("Sequence[str]", settings.AGENTOPS_TELEMETRY.modules)

    def candidates(self, extension: Extension, value: object) -> Iterable[type[SinkKind]]:
        kinds = [each for each in members_of(value) if _is_kind(each)]
        if not kinds:
            raise ExtensionFailed(extension.source, "contains no subclass of SinkKind with a name")
        return kinds

    def make(self, extension: Extension, candidate: type[SinkKind]) -> tuple[str, SinkKind]:
        kind = cast("SinkKind", build(extension, candidate, ("name", "send")))
        return kind.name, kind

    def describe(self, entry: CatalogueEntry[SinkKind]) -> str:
        return entry.part.title


KINDS = KindCatalogue({name: imported(path) for name, path in BUILTIN.items()})


def kind_of(name: str) -> SinkKind:
    """Return a kind. Raises `InvalidSink` for an unknown name."""
    kind = KINDS.get(name)
    if kind is None:
        raise InvalidSink(f"unknown kind {name[:64]!r}; use one of: {', '.join(KINDS.names())}")
    return kind


def _is_kind(member: object) -> TypeGuard[type[SinkKind]]:
    return isinstance(member, type) and issubclass(member, SinkKind) and hasattr(member, "name")


#: The hint of a secret is this number of its last characters. Secrets shorter than the minimum show none.
_HINT, _MIN_HINTED = 4, 16


class SinkUnusable(Exception):
    """A sink cannot be used until it is changed. The text gives the reason, without secrets."""


def target_of(sink: Sink) -> tuple[SinkKind, SinkTarget]:
    """Return the kind and the target of a sink. Raises `SinkUnusable`."""
    try:
        kind = kind_of(sink.kind)
        if sink.origin == Sink.Origin.ENVIRONMENT:
            configured = {each.name: each for each in settings.AGENTOPS_TELEMETRY.sinks}
            if (source := configured.get(sink.name)) is None:
                raise SinkUnusable("this process has no such sink in its environment")
            options, secrets = kind.check(source.options), dict(source.secrets)
        else:
            options, secrets = kind.check(sink.config), unsealed(sink)
    except (InvalidSink, sealing.Unreadable) as error:
        raise SinkUnusable(str(error)) from None
    return kind, SinkTarget(sink.pk, sink.name, options, secrets, sink.project_id, tuple(sink.event_types))


def seal_secrets(sink: Sink, secrets: Mapping[str, Any]) -> None:
    """Set the encrypted secrets of a sink, and their hints, without saving it."""
    sink.sealed, sink.key_id = sealing.seal(json.dumps(secrets), _owner(sink.pk)) if secrets else (None, "")
    sink.secret_hints = {name: hint_of(value) for name, value in secrets.items()}


def unsealed(sink: Sink) -> dict[str, Any]:
    """Return the decrypted secrets of a sink. Raises `sealing.Unreadable`."""
    if sink.sealed is None:
        return {}
    secrets: dict[str, Any] = json.loads(sealing.unseal(bytes(sink.sealed), sink.key_id, _owner(sink.pk)))
    return secrets


def hint_of(value: Any) -> Any:
    """Return a hint of a secret for the interface: its last characters. Lists and mappings keep their shape."""
    if isinstance(value, Mapping):
        return {name: hint_of(each) for name, each in value.items()}
    if isinstance(value, list):
        return [hint_of(each) for each in value]
    text = str(value)
    return f"••••{text[-_HINT:]}" if len(text) >= _MIN_HINTED else "••••"


def _owner(sink_id: UUID) -> str:
    return f"sink:{sink_id}"
