"""The kinds of sinks by name: built-in kinds, and kinds added by packages and modules of the deployment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeGuard, cast

from django.conf import settings

from agentops.base.catalogue import Catalogue, CatalogueEntry, Extension, ExtensionFailed, build, imported, members_of
from runs.telemetry.sink_kind import InvalidSink, SinkKind

#: Dotted paths by name, so that a worker imports only the kinds that it uses.
BUILTIN = {
    "http": "runs.telemetry.kinds.http_sink.HttpSink",
    "jsonl": "runs.telemetry.kinds.jsonl_sink.JsonlSink",
    "langfuse_batch": "runs.telemetry.kinds.langfuse_batch_sink.LangfuseBatchSink",
    "langfuse_otlp": "runs.telemetry.kinds.otlp_sinks.LangfuseOtlpSink",
    "otlp": "runs.telemetry.kinds.otlp_sinks.OtlpSink",
    "webhook": "runs.telemetry.kinds.webhook_sink.WebhookSink",
}
WEBHOOK = "webhook"


class KindCatalogue(Catalogue[SinkKind]):
    """One object of each kind, which serves all sinks of the kind."""

    kind = "sink"
    group = "agentops.sinks"
    setting = "AGENTOPS_SINK_MODULES"

    def modules(self) -> Sequence[str]:
        modules: Sequence[str] = settings.AGENTOPS_TELEMETRY.modules
        return modules

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
