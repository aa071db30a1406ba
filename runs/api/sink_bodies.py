"""Bodies and answers of the API of sinks and webhooks. Secrets are write-only."""

from __future__ import annotations

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from runs.api.requests.bodies import Choice, Flag, LineField, StrictSerializer, StringField
from runs.api.requests.queries import Choices, PageQuery
from runs.models import Delivery, Sink
from runs.queries import sink_health
from runs.telemetry.sink_changes import MAX_TYPES
from runs.telemetry.sink_targets import KINDS, WEBHOOK

_TYPES = "Event types to send; `run.*` means all that begin with `run.`. Empty: all except pieces of streamed text."
_WEBHOOK_TYPES = (
    "Event types to send; `run.*` means all that begin with `run.`. Empty: status changes, approvals and errors."
)


class SinkName(LineField):
    """The name of a sink or webhook."""

    def __init__(self, **options: Any) -> None:
        text = "Unique in the project: lower-case letters, digits, `-` and `_`."
        super().__init__(**{"min_length": 1, "max_length": 63, "help_text": text} | options)


class TypesField(serializers.ListField):  # type: ignore[misc]
    """Event types."""

    def __init__(self, help_text: str = _TYPES) -> None:
        child = StringField(max_length=128)
        super().__init__(child=child, required=False, default=None, max_length=MAX_TYPES, help_text=help_text)


class KindField(Choice):
    """A kind of sink. The choices are determined when the field is created, because packages add kinds."""

    def __init__(self) -> None:
        text = "Kind of the sink; `agentops extensions` lists those that packages add."
        super().__init__(choices=[name for name in KINDS.names() if name != WEBHOOK], help_text=text)


class NewSink(StrictSerializer):
    name = SinkName()
    kind = KindField()
    config = serializers.DictField(required=False, default=dict, help_text="Options of the kind, such as `url`.")
    secrets = serializers.DictField(
        required=False, default=dict, help_text="Secrets of the kind, such as `headers`. Stored encrypted."
    )
    event_types = TypesField()
    is_enabled = Flag(required=False, default=True)
    from_start = Flag(required=False, default=False, help_text="Also send all events that are stored already.")


class SinkChanges(StrictSerializer):
    """Omitted fields stay unchanged."""

    name = SinkName(required=False)
    config = serializers.DictField(required=False, help_text="Replaces all options.")
    secrets = serializers.DictField(required=False, help_text="Replaces the secrets that it names.")
    event_types = TypesField()
    is_enabled = Flag(required=False)


class NewWebhook(StrictSerializer):
    name = SinkName()
    url = StringField(max_length=2048, help_text="Where messages are sent: `https://…`.")
    secret = StringField(
        required=False,
        allow_null=True,
        default=None,
        max_length=128,
        help_text="`whsec_` and the base64 form of 24 to 64 bytes. Default: a new one, which is shown once.",
    )
    event_types = TypesField(_WEBHOOK_TYPES)
    is_enabled = Flag(required=False, default=True)


class WebhookChanges(StrictSerializer):
    """Omitted fields stay unchanged."""

    name = SinkName(required=False)
    url = StringField(required=False, max_length=2048)
    event_types = TypesField(_WEBHOOK_TYPES)
    is_enabled = Flag(required=False)


class DeliveriesQuery(PageQuery):
    state = Choices(
        choices=Delivery.State.values,
        help_text="Filter by state.",
        style={"example": ["dead"]},
    )


class SinkHealth(serializers.Serializer):  # type: ignore[misc]
    """The state of a sink's deliveries."""

    lag_s = serializers.IntegerField(help_text="Seconds that the oldest unsent event has waited; 0 if only a few.")
    failures = serializers.IntegerField(help_text="Failed attempts since the last success.")
    next_attempt_at = serializers.DateTimeField(allow_null=True)
    last_success_at = serializers.DateTimeField(allow_null=True)
    last_error = serializers.CharField()
    last_error_at = serializers.DateTimeField(allow_null=True)
    sent_events = serializers.IntegerField()
    dead_events = serializers.IntegerField(help_text="Events that the receiver refused and that are not sent again.")
    waiting_deliveries = serializers.IntegerField()
    dead_deliveries = serializers.IntegerField()


def health_of(sink: Any) -> dict[str, Any]:
    """Return the health of a sink that was loaded with `sink_health.with_health`."""
    cursor = sink.cursor
    fields = ("failures", "last_success_at", "last_error", "last_error_at", "sent_events", "dead_events")
    return {
        "lag_s": sink_health.lag_s(sink) if sink.is_sending else 0,
        "next_attempt_at": cursor.due_at,
        "waiting_deliveries": sink.waiting_deliveries,
        "dead_deliveries": sink.dead_deliveries,
        **{name: getattr(cursor, name) for name in fields},
    }


class SinkRow(serializers.ModelSerializer):  # type: ignore[misc]
    """A sink."""

    config = serializers.DictField()
    secret_hints = serializers.DictField(help_text="The last characters of each secret.")
    event_types = serializers.ListField(child=serializers.CharField())
    is_paused = serializers.BooleanField(
        help_text="Whether nothing is sent for now, because the telemetry of the project is off."
    )
    health = serializers.SerializerMethodField()

    class Meta:
        model = Sink
        fields: tuple[str, ...] = (
            *("id", "name", "kind", "config", "secret_hints", "event_types", "is_enabled", "is_paused"),
            *("disabled_reason", "created_by", "created_at", "updated_at", "health"),
        )
        extra_kwargs: ClassVar = {
            "disabled_reason": {"help_text": "Why the site has disabled it, such as refused credentials."}
        }

    @extend_schema_field(SinkHealth)
    def get_health(self, sink: Sink) -> dict[str, Any]:
        return SinkHealth(health_of(sink)).data  # type: ignore[no-any-return]


class WebhookRow(SinkRow):
    """A webhook."""

    url = serializers.CharField(source="config.url")

    class Meta(SinkRow.Meta):
        fields: tuple[str, ...] = (
            *("id", "name", "url", "secret_hints", "event_types", "is_enabled", "is_paused", "disabled_reason"),
            *("created_by", "created_at", "updated_at", "health"),
        )


class NewWebhookAnswer(WebhookRow):
    """A new webhook. Only this answer contains its secret."""

    secret = serializers.CharField(allow_null=True, help_text="Null if the request contained it.")

    class Meta(WebhookRow.Meta):
        fields: tuple[str, ...] = (*WebhookRow.Meta.fields, "secret")


class RotatedSecret(serializers.Serializer):  # type: ignore[misc]
    """A new secret of a webhook. The previous one stays valid until the next rotation."""

    secret = serializers.CharField(help_text="Shown once.")


class DeliveryRow(serializers.ModelSerializer):  # type: ignore[misc]
    """One or more events that were sent, or will be sent, in one request."""

    class Meta:
        model = Delivery
        fields = (
            *("id", "message_id", "event_type", "event_count", "run_id", "state", "attempts", "created_at"),
            *("attempted_at", "due_at", "status_code", "response", "error", "duration_ms"),
        )
        extra_kwargs: ClassVar = {
            "message_id": {"help_text": "The ID by which the receiver recognises repeats."},
            "event_type": {"help_text": "The type of the only event; `test` for a test; empty for a batch."},
            "due_at": {"help_text": "When the next attempt is due. Null if there is none."},
            "status_code": {"help_text": "HTTP status of the last answer."},
            "response": {"help_text": "The beginning of the last answer, with secrets masked."},
        }
