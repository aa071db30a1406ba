"""The OpenAPI document: valid, complete, and consistent with the responses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from django.test import Client
from drf_spectacular.validation import validate_schema

from agentops.accounts.access import SYSTEM
from agentops.accounts.invitations import invite
from agentops.accounts.models import Role
from runs.api import urls
from runs.api.docs import document
from runs.flows import runner
from runs.models import AlertRule
from runs.telemetry import deliveries
from tests.support.api import patterns
from tests.support.factories import drive, make_agent, make_import, make_person, make_project, make_run, with_key
from tests.support.flows import make_flow_run, run_of
from tests.support.project_rows import annotate, fill_alerts, fill_schedule, make_sink

FOR_ADMINS = ("/sinks", "/webhooks", "/share-links", "/members", "/invitations", "/keys", "/deletion")


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return dict(json.loads(document()))


def operations(described: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, verbs in described["paths"].items():
        for verb, operation in verbs.items():
            yield path, verb, operation


def whole(schema: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    """Return a schema together with the schemas that it references."""
    return {**schema, "components": described["components"]}


@pytest.mark.slow
def test_the_document_is_valid_openapi_3_1(described: dict[str, Any]) -> None:
    assert described["openapi"] == "3.1.0"
    validate_schema(described)


def test_the_document_contains_every_view(described: dict[str, Any]) -> None:
    told = {(path, verb) for path, verb, _ in operations(described)}
    there = {
        (re.sub(r"<\w+:(\w+)>", r"{\1}", path), verb)
        for path, view in patterns(urls.urlpatterns)
        if view.schema is not None
        for verb in ("get", "post", "put", "patch", "delete")
        if hasattr(view, verb) and verb in view.http_method_names
    }

    assert told == there


def test_operations_have_unique_ids_and_a_summary(described: dict[str, Any]) -> None:
    found = [operation for _, _, operation in operations(described)]

    assert len({operation["operationId"] for operation in found}) == len(found)
    assert all(operation["summary"] for operation in found)
    assert all(operation["security"] for operation in found)


def test_examples_match_their_schemas(described: dict[str, Any]) -> None:
    examples = [
        (f"{verb} {path} {status}", content["schema"], content["example"])
        for path, verb, operation in operations(described)
        for status, answer in operation["responses"].items()
        for content in answer.get("content", {}).values()
        if "example" in content
    ]
    assert len(examples) > 15
    for where, schema, example in examples:
        found = list(jsonschema.Draft202012Validator(whole(schema, described)).iter_errors(example))
        assert not found, (where, found)


def test_every_post_accepts_an_idempotency_key_and_refuses_unknown_fields(described: dict[str, Any]) -> None:
    for path, verb, operation in operations(described):
        if verb != "post":
            continue
        keys = {parameter["name"] for parameter in operation.get("parameters", ())} & {"Idempotency-Key"}
        # Events of runners, lines of sessions, AG-UI runs and steps of remote runs have IDs; repeating an import adds
        # nothing. The state of a graph may fork a run.
        has_ids = path.startswith(("/api/internal/", "/api/work/")) or path.endswith(
            ("/imports", "/claude-sessions", "/ag-ui")
        )
        has_ids = has_ids and path != "/api/work/threads"
        # Responses with a secret are not stored.
        has_secret = path.endswith(("/webhooks", "/rotate", "/alert-rules", "/keys", "/invitations"))
        # Idempotency keys belong to a project.
        is_above = path == "/api/projects"
        assert bool(keys) is not (has_ids or has_secret or is_above), path
        schema = next(iter(operation["requestBody"]["content"].values()))["schema"]
        if "$ref" in schema:
            schema = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        # Except for bodies that another program defines and may extend.
        is_open = "/agent-hooks/" in path or path.endswith("/ag-ui")
        assert all(one["additionalProperties"] is is_open for one in schema.get("oneOf", [schema])), path


def test_every_response_documents_the_common_headers(described: dict[str, Any]) -> None:
    common = {"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "Agentops-Version"}
    assert common == set(described["components"]["headers"])
    for path, verb, operation in operations(described):
        answers = operation["responses"]
        assert "429" in answers, (verb, path)
        assert all(common <= set(answer["headers"]) for answer in answers.values()), (verb, path)
        assert "Retry-After" in answers["429"]["headers"], (verb, path)


@pytest.mark.django_db(transaction=True)
def test_responses_match_the_document(described: dict[str, Any]) -> None:
    """Every list and every detail, for a run with rows of every kind."""
    run = drive(make_run(make_agent(fixture="claude-code-7e")))
    places = {"project": run.project.slug, "run_id": str(run.pk), "agent": run.agent_config["agent_id"]}
    places |= {"import_id": str(make_import(run).pk)}
    node = {"id": "work", "type": "agent", "agent": make_agent(run.project).slug, "prompt": "Go"}
    flow_run = make_flow_run({"nodes": [node]}, run.project)
    runner.advance(flow_run.pk)
    drive(run_of(flow_run, "work"))
    places |= {"flow": flow_run.slug, "flow_run_id": str(flow_run.pk), "number": 1}
    fill_alerts(run.project, run, 1, "alert")
    annotate(run, "note")
    places |= {"schedule_id": str(fill_schedule(run.project, 1, "text").pk)}
    places |= {"rule_id": str(AlertRule.objects.get().pk)}
    places |= {"session": str(run.pk), "job": str(run.pk)}
    places |= {"message_id": str(run.messages.first().pk), "call_id": str(run.tool_calls.first().pk)}
    for name, kind in (("sink_id", "jsonl"), ("webhook_id", "webhook")):
        sink = make_sink(run.project, kind, {"url": "https://example.org/"} if kind == "webhook" else {})
        places |= {name: str(sink.pk), f"delivery of {name}": str(deliveries.queue_test(sink).pk)}
    client, admin = Client(headers=with_key(run.project, "read", "secrets")), Client()
    places |= {"key_id": str(run.project.api_keys.get().pk)}
    invite(run.project, "new@example.org", Role.VIEWER, actor=SYSTEM)
    admin.force_login(make_person(run.project, Role.ADMIN))
    session = {"project_key": "work", "session_id": "s-1"}
    queries = {"search": {"q": "go"}, "entries": session, "subpaths": session}
    seen = 0
    for path, verb, operation in operations(described):
        # For files, see tests/runs/pages/test_annotations.py; for remote runs, tests/runs/remote.
        if verb != "get" or path.endswith(("/stream", "/export")) or path.startswith("/api/work/"):
            continue
        places["delivery_id"] = places[f"delivery of {'webhook_id' if 'webhook_id' in path else 'sink_id'}"]
        # Keys may not read the destinations of events, the share links, or the people with access.
        asker = admin if any(part in path for part in FOR_ADMINS) else client
        answer = asker.get(path.format(**places), queries.get(path.rpartition("/")[2], {}))
        assert answer.status_code == 200, (path, answer.content[:300])
        if path.endswith(("/output", ".patch")):
            assert operation["responses"]["200"]["content"].keys() == {answer.headers["Content-Type"]}
            continue
        schema = whole(operation["responses"]["200"]["content"]["application/json"]["schema"], described)
        jsonschema.validate(answer.json(), schema, format_checker=jsonschema.FormatChecker())
        seen += 1
    assert seen >= 12


@pytest.mark.django_db
def test_the_document_requires_authentication(client: Client) -> None:
    assert client.get("/api/schema").status_code == 401
    assert client.get("/api/docs").status_code == 302
    project = make_project()
    reader = with_key(project)
    told = client.get("/api/schema", headers=reader)
    assert told.status_code == 200
    assert client.get("/api/schema", headers={"If-None-Match": told["ETag"], **reader}).status_code == 304
    client.force_login(make_person(project))
    page = client.get("/api/docs")
    assert page.status_code == 200
    assert b"https://" not in page.content.split(b"<main")[1]
    assert "unsafe-eval" not in page["Content-Security-Policy"]
