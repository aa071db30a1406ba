"""The kinds of sinks by name: built-in kinds, and kinds added by packages and modules of the deployment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import cast

from django.conf import settings
from django.utils.module_loading import import_string

from runs import extensions
from runs.extensions import ExtensionFailed
from runs.telemetry.sink_kind import InvalidSink, SinkKind

SETTING = "AGENTOPS_SINK_MODULES"
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


@dataclass(frozen=True)
class AddedKind:
    """A kind that a package or a module adds, and its source."""

    kind: SinkKind
    source: str


@cache
def _added() -> tuple[dict[str, AddedKind], list[ExtensionFailed]]:
    faults: list[ExtensionFailed] = []
    kinds: dict[str, AddedKind] = {}
    candidates = extensions.installed(extensions.SINKS, settings.AGENTOPS_TELEMETRY.modules, SETTING)
    for extension, value in extensions.load_each(candidates, faults):
        classes = list(_classes_of(value))
        if not classes:
            extensions.note(ExtensionFailed(extension.source, "contains no subclass of SinkKind with a name"), faults)
        for each in classes:
            try:
                kind = cast("SinkKind", extensions.build(extension, each, ("name", "send")))
            except ExtensionFailed as fault:
                extensions.note(fault, faults)
                continue
            if kind.name in BUILTIN or kind.name in kinds:
                extensions.note(ExtensionFailed(extension.source, f"the kind {kind.name!r} exists already"), faults)
            else:
                kinds[kind.name] = AddedKind(kind, extension.source)
    return kinds, faults


def added() -> dict[str, AddedKind]:
    """Return the kinds of packages and modules by name."""
    return _added()[0]


def faults() -> list[ExtensionFailed]:
    """Return the errors of kinds that could not be loaded from packages or modules."""
    return _added()[1]


def reload() -> None:
    """Search for kinds again at the next use."""
    _added.cache_clear()


def names() -> list[str]:
    """Return the sorted names of all kinds."""
    return sorted({*BUILTIN, *added()})


@cache
def _built_in(name: str) -> SinkKind:
    kind: SinkKind = import_string(BUILTIN[name])()
    return kind


def kind_of(name: str) -> SinkKind:
    """Return a kind. Raises `InvalidSink` for an unknown name."""
    if name in BUILTIN:
        return _built_in(name)
    if name in added():
        return added()[name].kind
    raise InvalidSink(f"unknown kind {name[:64]!r}; use one of: {', '.join(names())}")


def _classes_of(value: object) -> Iterator[type[SinkKind]]:
    members = extensions.public(value) if isinstance(value, ModuleType) else [value]
    for member in members:
        if isinstance(member, type) and issubclass(member, SinkKind) and hasattr(member, "name"):
            yield member
