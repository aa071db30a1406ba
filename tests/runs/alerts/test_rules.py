"""Alert rules and mutes on pages, in the API and on the command line: the same rules and the same refusals."""

from __future__ import annotations

import html
import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from agentops.accounts.models import AuditEntry, Notification, Project, Role
from runs.alerts.alert_texts import MAX_FINDINGS, describe
from runs.alerts.rule_definition import channels_of
from runs.models import AgentRun, Alert, AlertDelivery, AlertMute, AlertRule
from runs.upkeep import retention
from tests.support.factories import make_person, make_waiting, with_key
from tests.support.pages import form_values
from tests.support.project_rows import AddRule, Clock, failed
from timeline.models import Log

SETTINGS, ALERTS, API = "/p/alpha/settings/alerts", "/p/alpha/alerts", "/api/projects/alpha"
URL = "https://hooks.example.com/services/SECRET/path"


@pytest.fixture
def admin(project: Project) -> Client:
    client = Client()
    client.force_login(make_person(project, Role.ADMIN))
    return client


def text_of(answer: Any) -> str:
    return html.unescape(answer.content.decode())


def send(client: Client, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    return client.generic(method, f"{API}/{path}", json.dumps(body or {}), content_type="application/json")


# --- Pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", AlertRule.Kind.values)
def test_the_form_of_each_kind_adds_a_rule(project: Project, admin: Client, kind: str) -> None:
    """The form's defaults, plus a limit if it has no default. Saving again unchanged keeps the rule the same."""
    values = form_values(text_of(admin.get(f"{SETTINGS}?kind={kind}")), "form")
    if "cost" in kind:
        assert admin.post(f"{SETTINGS}/save", values).status_code == 422
        values["limit_usd"] = "12.50"
    assert admin.post(f"{SETTINGS}/save", values).status_code == 303
    rule = AlertRule.objects.get()
    assert rule.kind == kind
    page = text_of(admin.get(SETTINGS))
    assert describe(rule) in page
    again = form_values(text_of(admin.get(f"{SETTINGS}?rule={rule.pk}")), "form")
    assert admin.post(f"{SETTINGS}/save", again).status_code == 303
    changed = AlertRule.objects.get()
    assert [changed.limit_usd, changed.minutes, changed.percent] == [rule.limit_usd, rule.minutes, rule.percent]


def test_urls_are_secrets(project: Project, admin: Client) -> None:
    """They are stored encrypted and never displayed again; the signing secret is displayed once."""
    values = form_values(text_of(admin.get(f"{SETTINGS}?kind=run_failed")), "form")
    saved = admin.post(f"{SETTINGS}/save", {**values, "webhook_url": URL, "slack_url": URL})
    rule = AlertRule.objects.get()
    channels = channels_of(rule)
    assert (channels.webhook_url, channels.slack_url) == (URL, URL)
    assert saved.status_code == 200
    assert channels.webhook_secret in text_of(saved)
    assert b"SECRET" not in bytes(rule.sealed or b"")
    page = f"{text_of(admin.get(SETTINGS))}{text_of(admin.get(f'{SETTINGS}?rule={rule.pk}'))}"
    assert "https://hooks.example.com/…" in page
    assert "SECRET" not in page
    assert channels.webhook_secret not in page
    assert "SECRET" not in json.dumps(list(AuditEntry.objects.values("before", "after")), default=str)

    # An empty field keeps the URL; a checkbox removes it.
    again = form_values(text_of(admin.get(f"{SETTINGS}?rule={rule.pk}")), "form")
    admin.post(f"{SETTINGS}/save", {**again, "remove_slack_url": "yes"})
    rule.refresh_from_db()
    assert (channels_of(rule).webhook_url, channels_of(rule).slack_url) == (URL, "")


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"name": ""}, "at least 1 character"),
        ({"webhook_url": "http://hooks.example.com/"}, "scheme 'http' is not allowed"),
        ({"slack_url": "https://127.0.0.1/x"}, "not public"),
        ({"agent": "a" * 129}, "at most 128 characters"),
        ({"minutes": "0"}, "cannot stall within 0 minutes"),
        ({"minutes": "soon"}, "is not a whole number"),
        ({"group_minutes": "0"}, "greater than or equal to 1"),
    ],
)
def test_invalid_values_show_an_error_at_their_field(
    project: Project, admin: Client, values: dict[str, str], error: str
) -> None:
    filled = form_values(text_of(admin.get(f"{SETTINGS}?kind=run_stalled")), "form")
    answer = admin.post(f"{SETTINGS}/save", {**filled, **values})
    assert answer.status_code == 422
    assert error in text_of(answer)
    assert 'aria-invalid="true"' in text_of(answer)
    assert not AlertRule.objects.exists()


def test_a_rule_is_tested_disabled_and_removed(project: Project, admin: Client, rule: AddRule) -> None:
    found = rule("run_failed", slack_url=URL)
    admin.post(f"{SETTINGS}/test", {"rule": found.pk})
    assert Notification.objects.get().title == "Test of the alert rule run_failed"
    assert AlertDelivery.objects.get().message.event == "test"
    admin.post(f"{SETTINGS}/switch", {"rule": found.pk, "enabled": "no"})
    assert "disabled" in text_of(admin.get(SETTINGS))
    admin.post(f"{SETTINGS}/remove", {"rule": found.pk})
    assert not AlertRule.objects.exists()
    actions = AuditEntry.objects.filter(action__startswith="alert").values_list("action", flat=True)
    assert set(actions) == {f"alert_rule.{verb}" for verb in ("added", "tested", "changed", "removed")}


def test_alerts_are_listed_and_muted(project: Project, admin: Client, rule: AddRule, clock: Clock) -> None:
    rule("run_waiting")
    run = make_waiting(project)
    clock.evaluate()
    page = text_of(admin.get(ALERTS))
    assert "waits for the outcome of a tool call" in page
    assert f'href="/runs/{run.pk}"' in page
    assert admin.post(f"{ALERTS}/mute", {"what": f"run:{run.pk}", "minutes": "60"}).status_code == 303
    entry = AuditEntry.objects.get(action="alert.muted")
    assert (entry.actor[:11], entry.door, entry.ip) == ("user:alice-", "page", "127.0.0.1")
    clock.evaluate(seconds=16)
    assert not Notification.objects.filter(kind="alert").exists()
    assert "End mute" in text_of(admin.get(ALERTS))
    admin.post(f"{ALERTS}/mute", {"what": f"run:{run.pk}", "minutes": "0"})
    clock.evaluate()
    assert Notification.objects.filter(kind="alert").count() == 1
    assert admin.post(f"{ALERTS}/mute", {"what": f"run:{project.pk}", "minutes": "5"}).status_code == 404
    for wrong in ({"what": "run:x", "minutes": "5"}, {"what": "rule:\0", "minutes": "5"}, {"what": "agent:a"}):
        assert admin.post(f"{ALERTS}/mute", wrong).status_code == 400


# --- API ----------------------------------------------------------------------------------------------------------


def test_rules_in_the_api(project: Project, admin: Client) -> None:
    made = send(
        admin, "POST", "alert-rules", {"name": "Costs", "kind": "run_cost", "limit_usd": "5", "webhook_url": URL}
    )
    assert made.status_code == 201
    body = made.json()
    assert body["webhook_secret"].startswith("whsec_")
    assert (body["webhook_url"], body["limit_usd"], body["minutes"]) == ("https://hooks.example.com/…", "5.0000", None)
    changed = send(admin, "PATCH", f"alert-rules/{body['id']}", {"agent_id": "reviewer", "is_enabled": False})
    assert (changed.json()["agent_id"], changed.json()["is_enabled"]) == ("reviewer", False)
    assert changed.json()["webhook_secret"] == ""
    [row] = admin.get(f"{API}/alert-rules").json()["results"]
    assert row == {name: value for name, value in changed.json().items() if name != "webhook_secret"}
    assert send(admin, "DELETE", f"alert-rules/{body['id']}").status_code == 204
    assert admin.get(f"{API}/alert-rules/{body['id']}").json()["code"] == "alert_rule_not_found"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"kind": "run_failed", "minutes": 5}, "/minutes"),
        ({"kind": "day_cost"}, "/limit_usd"),
        ({"kind": "day_cost", "limit_usd": "1", "agent_id": "a"}, "/agent_id"),
        ({"kind": "error_rate", "min_runs": 30}, "/min_runs"),
        ({"kind": "run_failed", "webhook_url": "https://10.0.0.1/"}, "/webhook_url"),
        ({"kind": "all"}, "/kind"),
        ({"kind": "run_failed", "x": 1}, "/x"),
    ],
)
def test_invalid_rules_are_refused(project: Project, admin: Client, body: dict[str, Any], pointer: str) -> None:
    answer = send(admin, "POST", "alert-rules", {"name": "Rule", **body})
    assert answer.status_code == 422
    assert pointer in [each["pointer"] for each in answer.json()["errors"]]


def test_alerts_and_mutes_in_the_api(project: Project, rule: AddRule, clock: Clock) -> None:
    """A read key lists alerts, a write key creates mutes, and no key changes rules."""
    reader, writer = Client(headers=with_key(project, "read")), Client(headers=with_key(project, "write"))
    rule("run_failed")
    runs = [failed(project, f"run-{number}") for number in range(3)]
    failed(project, "other", agent="writer")
    clock.evaluate()
    first = reader.get(f"{API}/alerts?limit=1").json()
    [alert] = first["results"]
    second = reader.get(first["next"]).json()
    assert second["next"] is None
    by_agent = {row["agent_id"]: row for row in (alert, *second["results"])}
    assert (by_agent["coder"]["count"], by_agent["coder"]["kind"]) == (3, "run_failed")
    assert {each["run_id"] for each in by_agent["coder"]["findings"]} == {str(run.pk) for run in runs}
    assert reader.get(f"{API}/alerts?state=closed").json()["results"] == []

    assert send(reader, "POST", "alert-mutes", {"agent_id": "coder", "minutes": 5}).status_code == 403
    muted = send(writer, "POST", "alert-mutes", {"agent_id": "coder", "minutes": 5})
    assert (muted.status_code, muted.json()["agent_id"]) == (200, "coder")
    assert len(reader.get(f"{API}/alert-mutes").json()["results"]) == 1
    assert send(writer, "POST", "alert-mutes", {"agent_id": "coder", "minutes": 0}).status_code == 204
    both = send(writer, "POST", "alert-mutes", {"agent_id": "coder", "run_id": str(runs[0].pk), "minutes": 5})
    assert (both.status_code, both.json()["code"]) == (422, "invalid_mute")
    assert send(writer, "POST", "alert-rules", {"name": "x", "kind": "run_failed"}).status_code == 403


# --- Command line, retention ---------------------------------------------------------------------------------------


def agentops(*words: str) -> str:
    out = io.StringIO()
    call_command("alert", *words, stdout=out)
    return out.getvalue()


def test_the_command(project: Project, clock: Clock) -> None:
    added = agentops("add", "alpha", "Stalls", "run_stalled", "--minutes", "5", "--webhook-url", URL, "--no-email")
    assert "no event for 5 min" in added
    assert "whsec_" in added
    rule = AlertRule.objects.get()
    assert (rule.sends_email, rule.shown_urls) == (False, {"webhook_url": "https://hooks.example.com/…"})
    assert "sends the test" in agentops("test", "alpha", "Stalls")
    assert "muted until" in agentops("mute", "alpha", "--rule", "Stalls", "90")
    [row] = json.loads(agentops("ls", "alpha", "--rules", "--json"))
    assert (row["name"], row["sent_to"], row["state"]) == ("Stalls", "webhook", "enabled")
    assert row["muted_until"] is not None
    assert agentops("mute", "alpha", "--rule", str(rule.pk), "0") == "not muted\n"
    assert "removed" in agentops("rm", "alpha", "Stalls")
    with pytest.raises(CommandError, match="no such alert rule"):
        agentops("rm", "alpha", "Stalls")
    agentops("add", "alpha", "Failures", "run_failed")
    run = failed(project, "one")
    clock.evaluate()
    [alert] = json.loads(agentops("ls", "alpha", "--json"))
    assert (alert["title"], alert["runs"]) == ("Run of coder failed", str(run.pk))


def test_unlisted_findings_are_counted(project: Project, rule: AddRule, clock: Clock, admin: Client) -> None:
    rule("run_failed")
    for number in range(MAX_FINDINGS + 1):
        failed(project, f"run {number}")
    clock.evaluate()
    assert "and 1 older one<" in admin.get(ALERTS).content.decode()
    failed(project, "one more")
    clock.evaluate()

    assert "and 2 older ones<" in admin.get(ALERTS).content.decode()


def test_retention_deletes_findings_of_a_run(project: Project, rule: AddRule, clock: Clock) -> None:
    rule("run_failed")
    run = failed(project, "one")
    clock.evaluate()
    clock.evaluate(seconds=16)
    clock.evaluate(minutes=11)
    AlertMute.objects.create(project=project, run=run, until=clock.now(), created_by="test")
    AgentRun.objects.filter(pk=run.pk).update(completed_at="2020-01-01T00:00:00Z", created_at="2020-01-01T00:00:00Z")
    Log.objects.filter(pk=run.pk).update(last_event_at="2020-01-01T00:00:00Z")
    list(retention.apply(retention.RemovalReport(project, 30), by="test"))
    assert not AgentRun.objects.exists()
    assert not Notification.objects.exists()
    assert (Alert.objects.get().findings.count(), AlertMute.objects.count()) == (0, 0)
