"""Send events as signed messages that follow the Standard Webhooks specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.conf import settings
from django.urls import reverse

from agentops.base.http.receivers import signed_headers, signer_of
from runs.models.telemetry import TEST
from runs.telemetry import guarded_posts
from runs.telemetry.outgoing_json import encode
from runs.telemetry.sink_kind import InvalidSink, OutgoingEvent, Receipt, SinkKind, SinkOptions, SinkTarget
from timeline.events import EventType

#: During a rotation, the old and the new secret both sign.
MAX_SECRETS = 2


class WebhookOptions(SinkOptions):
    """The options of a webhook."""

    url: guarded_posts.SinkUrl


class WebhookSink(SinkKind):
    """One signed request for each event, each with separate attempts."""

    name = "webhook"
    title = "signed messages (Standard Webhooks)"
    options_class = WebhookOptions
    secret_names: ClassVar[Mapping[str, bool]] = {"secrets": True}
    sends_each = True
    default_types = (
        *(EventType.RUN_STARTED, EventType.RUN_WAITING, EventType.RUN_PAUSED, EventType.RUN_RESUMED),
        *(EventType.RUN_COMPLETED, EventType.RUN_FAILED, EventType.RUN_STOPPED),
        *(EventType.APPROVAL_REQUESTED, EventType.APPROVAL_RESOLVED, EventType.ERROR, EventType.BUDGET_WARNING),
    )

    def check_secrets(self, secrets: Mapping[str, Any]) -> None:
        """Check that there are one or two secrets of the specified form. Raises `InvalidSink`."""
        values = secrets.get("secrets")
        if not isinstance(values, list) or not 1 <= len(values) <= MAX_SECRETS:
            raise InvalidSink(f"1 to {MAX_SECRETS} secrets are expected", "secrets")
        for value in values:
            try:
                signer_of(value)
            except ValueError as error:
                raise InvalidSink(str(error), "secrets") from None

    def render(
        self, target: SinkTarget, events: Sequence[OutgoingEvent], message_id: str
    ) -> Sequence[tuple[str, bytes]]:
        """Return the message's ID and its body."""
        return [(message_id, encode(_message(event))) for event in events]

    def send(self, target: SinkTarget, requests: Sequence[tuple[str, bytes]]) -> Receipt:
        """Sign the message with each secret at the time of the attempt, and send it."""
        receipt = Receipt()
        for message_id, body in requests:
            headers = signed_headers(target.secrets["secrets"], message_id, body)
            receipt = guarded_posts.receipt_of(guarded_posts.post(target.options.url, body, headers))
        return receipt


def _message(event: OutgoingEvent) -> dict[str, Any]:
    payload = event.envelope["payload"]
    data = {
        "run_id": payload.get("runId"),
        "agent_id": event.envelope["agent_id"],
        "session_id": event.envelope["session_id"],
        "flow_run_id": None if event.flow_run_id is None else str(event.flow_run_id),
        "event": payload,
    }
    if settings.AGENTOPS_BASE_URL and event.row.type != TEST:
        page = "runs:flow-run" if event.is_of_flow_run else "runs:detail"
        data["url"] = f"{settings.AGENTOPS_BASE_URL}{reverse(page, args=[event.row.log_id])}"
    return {"type": event.row.type, "timestamp": payload["ts"], "data": data}
