"""The API of sinks and webhooks for an admin: secrets can be written but never read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from standardwebhooks.webhooks import Webhook

from agentops.accounts.models import AuditEntry, IdempotencyKey, Project, Role
from runs.models import Sink
from tests.support.factories import make_agent, make_person, make_project, make_run
from tests.support.loopback_servers import Receiver
from tests.support.project_rows import append, export

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "a-header-that-nobody-may-read-again"
Call = Callable[..., Any]


@pytest.fixture
def project() -> Project:
    return make_project("shop")


@pytest.fixture
def call(project: Project) -> Call:
    client = Client()
    client.force_login(make_person(project, Role.ADMIN))

    def call(method: str, path: str, body: Any = None, **headers: str) -> Any:
        options = {"content_type": "application/json", "headers": headers}
        return client.generic(
            method, f"/api/projects/shop/{path}", b"" if body is None else orjson.dumps(body), **options
        )

    return call


def test_a_sink_can_be_added_changed_tested_and_deleted(call: Call, receiver: Receiver, project: Project) -> None:
    body = {
        "name": "warehouse",
        "kind": "http",
        "config": {"url": receiver.url},
        "secrets": {"headers": {"X-Key": SECRET}},
        "event_types": ["run.*", "x.note"],
    }
    made = call("POST", "sinks", body, **{"Idempotency-Key": "k1"})
    assert made.status_code == 201, made.content
    sink = made.json()
    assert call("POST", "sinks", body, **{"Idempotency-Key": "k1"}).json() == sink
    assert sink["secret_hints"] == {"headers": {"X-Key": "••••gain"}}
    path = made["Location"].removeprefix("/api/projects/shop/")

    receiver.answer(500, body=b"later")
    tested = call("POST", f"{path}/test", {})
    assert (tested.status_code, tested.json()["state"]) == (202, "waiting")
    export()
    delivery = f"{path}/deliveries/{tested.json()['id']}"
    assert call("GET", delivery).json() | {"state": "dead", "status_code": 500} == call("GET", delivery).json()
    again = call("POST", f"{delivery}/resend")
    assert again.json()["message_id"] == tested.json()["message_id"]
    export()
    assert [row["state"] for row in call("GET", f"{path}/deliveries?state=sent").json()["results"]] == ["sent"]

    changed = call("PATCH", path, {"event_types": [], "is_enabled": False})
    assert (changed.json()["is_enabled"], changed.json()["secret_hints"]) == (False, sink["secret_hints"])
    assert call("DELETE", path).status_code == 204
    assert call("GET", path).json()["code"] == "sink_not_found"
    texts = [made.content, changed.content, *map(str.encode, IdempotencyKey.objects.values_list("body", flat=True))]
    assert not any(SECRET.encode() in text for text in texts)
    actions = list(AuditEntry.objects.filter(project=project).order_by("pk").values_list("action", flat=True))
    assert actions[-5:] == ["sink.created", "sink.test_sent", "sink.delivery_resent", "sink.changed", "sink.removed"]
    assert SECRET not in str(list(AuditEntry.objects.values_list("before", "after")))


def test_the_secret_of_a_webhook_appears_once(call: Call, receiver: Receiver, project: Project) -> None:
    made = call("POST", "webhooks", {"name": "chat", "url": receiver.url, "event_types": ["x.note"]})
    assert made.status_code == 201, made.content
    secret, path = made.json()["secret"], made["Location"].removeprefix("/api/projects/shop/")
    assert made["Cache-Control"] == "no-store"
    rotated = call("POST", f"{path}/rotate").json()["secret"]
    append(make_run(make_agent(project)), "hello")
    export(2)

    message = receiver.received[0]
    for each in (secret, rotated):
        Webhook(each).verify(message.body, message.headers)
    listed = call("GET", "webhooks").content + call("GET", path).content
    assert secret[-30:].encode() not in listed
    assert rotated[-30:].encode() not in listed
    assert call("GET", path).json()["health"]["sent_events"] == 1
    assert call("GET", "sinks").json()["results"] == []
    assert call("GET", f"sinks/{path.rpartition('/')[2]}").status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "fault"),
    [
        ("sinks", {"name": "a", "kind": "http", "config": {"url": "https://169.254.169.254/"}}, "invalid_sink"),
        ("sinks", {"name": "a", "kind": "http", "config": {}}, "invalid_sink"),
        ("sinks", {"name": "a", "kind": "jsonl", "config": {"directory": "/etc"}}, "invalid_sink"),
        ("sinks", {"name": "a", "kind": "jsonl", "secrets": {"password": "x"}}, "invalid_sink"),
        ("sinks", {"name": "A!", "kind": "jsonl"}, "invalid_sink"),
        ("sinks", {"name": "a", "kind": "webhook"}, "invalid_choice"),
        ("sinks", {"name": "a", "kind": "langfuse_otlp", "config": {"public_key": "pk"}}, "invalid_sink"),
        ("webhooks", {"name": "a", "url": "https://example.org/", "secret": "short"}, "invalid_sink"),
        ("webhooks", {"name": "a", "url": "https://example.org/", "event_types": ["run.gone"]}, "invalid_sink"),
        ("webhooks", {"name": "a", "url": "https://example.org/", "colour": "red"}, "unknown_field"),
    ],
)
def test_an_invalid_sink_is_refused_and_not_stored(call: Call, path: str, body: Any, fault: str) -> None:
    answer = call("POST", path, body)

    assert (answer.status_code, answer.json()["code"]) == (422, fault), answer.content
    assert not Sink.objects.exists()


def test_a_list_needs_a_constant_number_of_queries(call: Call) -> None:

    counts = []
    for number in (1, 5):
        for each in range(number):
            assert call("POST", "sinks", {"name": f"s{number}-{each}", "kind": "jsonl"}).status_code == 201
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert len(call("GET", "sinks").json()["results"]) in (1, 6)
        counts.append(len(queries))
    assert counts[0] == counts[1]
