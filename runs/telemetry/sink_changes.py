"""Create, change and remove sinks, each with an audit entry in the same transaction.

The caller checks the permission (Action.CONFIGURE). Sinks configured in the environment are stored as rows, so that
they have a cursor and appear in lists.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from agentops.accounts import sealing
from agentops.accounts.audit import Actor, record
from agentops.accounts.models import Project
from agentops.base.http.receivers import new_secret
from agentops.base.refusals import NotFound
from runs.models import Delivery, Sink, SinkCursor
from runs.telemetry import deliveries, sink_claims
from runs.telemetry.http_sinks import MAX_SECRETS
from runs.telemetry.sink_claims import FAMILY
from runs.telemetry.sink_kind import InvalidSink, SinkKind, raise_all
from runs.telemetry.sink_targets import WEBHOOK, kind_of, seal_secrets, unsealed
from timeline.events.base import EVENT_TYPES, is_custom
from timeline.reading import newest_event

#: Maximum number of sinks of a project, because each reads all of its events.
MAX_SINKS = 50
MAX_TYPES = 100
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
#: The patterns that select all event types with the same first part. `x.` is the prefix of custom types.
_FAMILIES = frozenset({"x.*", *(f"{each.partition('.')[0]}.*" for each in EVENT_TYPES if "." in each)})


class SinkAuditAction(enum.StrEnum):
    """The audited actions on sinks."""

    SINK_CREATED = "sink.created"
    SINK_CHANGED = "sink.changed"
    SINK_REMOVED = "sink.removed"
    SECRET_ROTATED = "sink.secret_rotated"  # noqa: S105
    DELIVERY_RESENT = "sink.delivery_resent"
    TEST_SENT = "sink.test_sent"


@dataclass(frozen=True)
class SinkChange:
    """The changes to a sink. None: unchanged."""

    name: str | None = None
    config: Mapping[str, Any] | None = None
    secrets: Mapping[str, Any] | None = field(default=None, repr=False)
    event_types: Sequence[str] | None = None
    is_enabled: bool | None = None


def sinks_of(project: Project, *, webhooks: bool) -> QuerySet[Sink]:
    """Return the webhooks of a project, or its other sinks, by name."""
    rows = Sink.objects.filter(project=project).select_related("cursor").order_by("name")
    return rows.filter(kind=WEBHOOK) if webhooks else rows.exclude(kind=WEBHOOK)


def create(
    project: Project, kind_name: str, new: SinkChange, *, by: Actor, from_start: bool = False
) -> tuple[Sink, str | None]:
    """Create a sink. It gets the events from now on, or with `from_start` all stored events. Raises `InvalidSink`.

    The second value is the generated secret of a webhook for which none was given, otherwise None. It cannot be read
    again.
    """
    kind = kind_of(kind_name)
    sink = Sink(project=project, kind=kind_name, created_by=by if isinstance(by, str) else by.actor)
    secret = new_secret() if kind_name == WEBHOOK and not new.secrets else None
    secrets = {"secrets": [secret]} if secret else dict(new.secrets or {})
    _apply(sink, kind, new, secrets=secrets)
    with transaction.atomic():
        # Locked, so that two concurrent requests neither exceed the limit nor use the same name.
        Project.objects.locked(project)
        _require_free_name(sink)
        if Sink.objects.filter(project=project).count() >= MAX_SINKS:
            raise InvalidSink(f"a project can have at most {MAX_SINKS} sinks and webhooks")
        sink.save(force_insert=True)
        SinkCursor.objects.create(sink=sink, event_id=0 if from_start else newest_event())
        record(by, SinkAuditAction.SINK_CREATED, project=project, obj=sink, after=_audit_values(sink))
    return sink, secret


def change(sink: Sink, changes: SinkChange, *, by: Actor) -> Sink:
    """Change a sink, and return it. `secrets` replaces the named secrets only.

    Raises `InvalidSink`, or `NotFound` with the code `sink_not_found`.
    """
    with transaction.atomic():
        locked = _locked(sink)
        before = _audit_values(locked)
        _apply(locked, kind_of(locked.kind), changes, secrets=_secrets_after(locked, changes))
        locked.save()
        # The change may have fixed the cause of the failures.
        SinkCursor.objects.filter(pk=locked.pk).update(failures=0, due_at=None)
        deliveries.make_due(locked)
        after = {**_audit_values(locked), **({"secrets": sorted(changes.secrets)} if changes.secrets else {})}
        if after != before:
            record(by, SinkAuditAction.SINK_CHANGED, project=locked.project, obj=locked, before=before, after=after)
    return locked


def check(sink: Sink, changes: SinkChange) -> None:
    """Check a change of a sink, which may be a new one. Raises `InvalidSink` with all problems."""
    _apply(copy(sink), kind_of(sink.kind), changes, secrets=_secrets_after(sink, changes))


def remove(sink: Sink, *, by: Actor) -> None:
    """Delete a sink with its deliveries. Events not yet sent are dropped. Raises `InvalidSink` or `NotFound`."""
    with transaction.atomic():
        locked = _locked(sink)
        record(by, SinkAuditAction.SINK_REMOVED, project=locked.project, obj=locked, before=_audit_values(locked))
        locked.delete()


def rotate_secret(sink: Sink, *, by: Actor) -> str:
    """Add a secret to a webhook, and return it. The previous one stays valid until the next rotation.

    Raises `InvalidSink` or `NotFound`.
    """
    if sink.kind != WEBHOOK:
        raise InvalidSink("only a webhook has a secret that can be rotated")
    secret = new_secret()
    with transaction.atomic():
        locked = _locked(sink)
        values = [secret, *_readable(locked).get("secrets", [])][:MAX_SECRETS]
        seal_secrets(locked, {"secrets": values})
        locked.save(update_fields=["sealed", "key_id", "secret_hints", "updated_at"])
        record(by, SinkAuditAction.SECRET_ROTATED, project=locked.project, obj=locked)
    return secret


def send_test(sink: Sink, *, by: Actor) -> Delivery:
    """Queue a test event for a worker to send, and return its delivery."""
    with transaction.atomic():
        delivery = deliveries.queue_test(sink)
        record(by, SinkAuditAction.TEST_SENT, project=sink.project, obj=sink)
    return delivery


def resend(delivery: Delivery, *, by: Actor) -> Delivery:
    """Queue a sent or dead delivery again, with the same ID, and return it. A waiting one is not changed."""
    with transaction.atomic():
        ended = Delivery.objects.filter(pk=delivery.pk).exclude(state=Delivery.State.WAITING)
        if deliveries.send_again(ended):
            after, sink = {"message_id": delivery.message_id}, delivery.sink
            record(by, SinkAuditAction.DELIVERY_RESENT, project=sink.project, obj=sink, after=after)
    return Delivery.objects.select_related("sink").get(pk=delivery.pk)


def resend_dead(sink: Sink, *, by: Actor) -> int:
    """Queue all dead deliveries of a sink again, with the same IDs, and return their number."""
    with transaction.atomic():
        count = deliveries.send_again(Delivery.objects.filter(sink=sink, state=Delivery.State.DEAD))
        if count:
            record(by, SinkAuditAction.DELIVERY_RESENT, project=sink.project, obj=sink, after={"count": count})
    return count


def _apply(sink: Sink, kind: SinkKind, changes: SinkChange, *, secrets: Mapping[str, Any] | None) -> None:
    """Set the changed fields of a sink, without saving it. `secrets`: all its secrets, or None to keep them.

    Raises `InvalidSink` with all problems.
    """
    if changes.name is not None:
        sink.name = changes.name
    if changes.config is not None:
        sink.config = dict(changes.config)
    checks: list[Callable[[], object]] = [partial(_check_name, sink), partial(kind.check, sink.config)]
    if secrets is not None:
        checks.append(partial(_check_secrets, kind, secrets))
    if changes.event_types is not None:
        checks.append(partial(_check_types, changes.event_types))
    raise_all(checks)
    if secrets is not None:
        seal_secrets(sink, secrets)
    if changes.event_types is not None:
        sink.event_types = list(dict.fromkeys(changes.event_types))
    if changes.is_enabled is not None:
        sink.is_enabled, sink.disabled_reason = changes.is_enabled, ""


def _secrets_after(sink: Sink, changes: SinkChange) -> dict[str, Any] | None:
    """Return all secrets of a sink after a change, or None if they need no check and stay the same."""
    if changes.secrets:
        return {**_readable(sink), **changes.secrets}
    # A new sink is checked for required secrets. `create` generates the secret of a webhook.
    return {} if sink._state.adding and sink.kind != WEBHOOK else None


def _readable(sink: Sink) -> dict[str, Any]:
    """Return the secrets of a sink; none if their encryption key is lost, so that they can be replaced."""
    try:
        return unsealed(sink)
    except sealing.Unreadable:
        return {}


def _check_name(sink: Sink) -> None:
    if not _NAME.fullmatch(sink.name):
        raise InvalidSink("1 to 63 lower-case letters, digits, _ and - are expected, the first no _ or -", "name")
    _require_free_name(sink)


def _check_secrets(kind: SinkKind, secrets: Mapping[str, Any]) -> None:
    unknown = sorted(set(secrets) - set(kind.secret_names))
    if unknown:
        known = ", ".join(kind.secret_names) or "none"
        raise InvalidSink(f"this kind has no secret {unknown[0][:64]!r}; known are {known}", "secrets")
    missing = [name for name, is_required in kind.secret_names.items() if is_required and not secrets.get(name)]
    if missing:
        raise InvalidSink("a value is required", missing[0])
    kind.check_secrets(secrets)


def _check_types(types: Sequence[str]) -> None:
    if len(types) > MAX_TYPES:
        raise InvalidSink(f"at most {MAX_TYPES} types are expected", "event_types")
    for each in types:
        is_known = each in _FAMILIES if each.endswith(FAMILY) else each in EVENT_TYPES or is_custom(each)
        if not is_known:
            raise InvalidSink(f"{each[:128]!r} is no event type, and no family such as run.*", "event_types")


def _require_free_name(sink: Sink) -> None:
    if Sink.objects.filter(project=sink.project_id, name=sink.name).exclude(pk=sink.pk).exists():
        raise InvalidSink(f"the project has a sink or webhook {sink.name!r} already", "name")


def _locked(sink: Sink) -> Sink:
    """Return a sink locked for a change. Raises `NotFound`, or `InvalidSink` if the environment configures the sink."""
    sink_claims.lock_cursor(sink.pk)
    rows = Sink.objects.select_for_update(no_key=True, of=("self",)).select_related("project")
    locked = rows.filter(pk=sink.pk).first()
    if locked is None:
        raise NotFound("no such sink", code="sink_not_found")
    if locked.origin == Sink.Origin.ENVIRONMENT:
        raise InvalidSink("this sink is configured by the environment of the site")
    return locked


def _audit_values(sink: Sink) -> dict[str, Any]:
    """Return the values of a sink for the audit log, without its secrets."""
    fields = ("name", "kind", "config", "event_types", "is_enabled")
    return {name: getattr(sink, name) for name in fields}


#: Why a sink is disabled that the environment no longer configures.
ABSENT = "not in the environment of the worker"
#: Who created the sinks of the environment.
ACTOR = "system"


def store_environment_sinks() -> None:
    """Store the sinks that the environment of this process configures as rows, and disable those it no longer has.

    A new sink gets the events from now on.
    """
    configured = {sink.name: sink for sink in settings.AGENTOPS_TELEMETRY.sinks}
    rows = Sink.objects.filter(project=None, origin=Sink.Origin.ENVIRONMENT)
    rows.exclude(name__in=configured).filter(is_enabled=True).update(is_enabled=False, disabled_reason=ABSENT)
    for name, sink in configured.items():
        with transaction.atomic():
            values = {"kind": sink.kind, "config": dict(sink.options), "is_enabled": True, "disabled_reason": ""}
            row, is_new = Sink.objects.get_or_create(
                project=None, name=name, defaults={**values, "origin": Sink.Origin.ENVIRONMENT, "created_by": ACTOR}
            )
            if is_new:
                SinkCursor.objects.create(sink=row, event_id=newest_event())
            elif any(getattr(row, field) != value for field, value in values.items()):
                # This enables a disabled sink again: the operator who restarted the worker may have fixed the cause.
                sink_claims.lock_cursor(row.pk)
                Sink.objects.filter(pk=row.pk).update(**values)
                SinkCursor.objects.filter(pk=row.pk).update(failures=0, due_at=None)
