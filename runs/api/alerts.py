"""`…/alert-rules`, `…/alerts` and `…/alert-mutes`."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.accounts.access import Action
from agentops.accounts.models import Project
from agentops.base import database_clock
from runs.access import run_in
from runs.alerts import alert_rule_changes
from runs.alerts.alert_rule_changes import MAX_MINUTES
from runs.alerts.alert_texts import alerts_of
from runs.alerts.rule_definition import MAX_AGENT, MAX_RUNS, WEEK_HOURS, WEEK_MINUTES
from runs.api.action_views import ActionView
from runs.api.base_views import ListView, SecretOnce
from runs.api.requests.bodies import (
    Choice,
    Flag,
    IdField,
    LineField,
    StrictSerializer,
    StringField,
    WholeField,
    body_of,
)
from runs.api.requests.inputs import EmptyBody
from runs.api.requests.queries import PageQuery
from runs.models import Alert, AlertFinding, AlertMute, AlertRule

_URL = "Empty: none. Answers show it without its path."


def _limit(minimum: int, maximum: int, text: str) -> WholeField:
    return WholeField(required=False, allow_null=True, min_value=minimum, max_value=maximum, help_text=text)


class AlertRuleChange(StrictSerializer):
    """The fields of a rule that can be changed."""

    name = LineField(allow_blank=False, max_length=63, help_text="Unique in the project.")
    minutes = _limit(
        0, WEEK_MINUTES, "Of `run_stalled` (default 15), `run_waiting` (default 0) and `sink_behind` (default 60)."
    )
    limit_usd = serializers.DecimalField(
        12, 4, required=False, allow_null=True, help_text="Of `run_cost` and `day_cost`: US dollars."
    )
    percent = _limit(1, 100, "Of `error_rate` (default 50).")
    last_runs = _limit(1, MAX_RUNS, "Of `error_rate` (default 20): number of newest runs of the agent that count.")
    min_runs = _limit(1, MAX_RUNS, "Of `error_rate` (default 5): with fewer runs, nothing is announced.")
    agent_id = LineField(
        required=False,
        source="agent",
        max_length=MAX_AGENT,
        help_text="Only runs of this agent; `flow NAME`: only of this flow. Empty: all.",
    )
    label = LineField(required=False, max_length=200, help_text="Only runs with this label. Empty: all.")
    sends_email = Flag(required=False, help_text="Notify operators and admins: bell and e-mail. Default: true.")
    webhook_url = StringField(required=False, max_length=2000, help_text=f"Receives signed JSON. {_URL}")
    slack_url = StringField(required=False, max_length=2000, help_text=f"Receives `text` and `blocks`. {_URL}")
    group_minutes = WholeField(
        required=False,
        min_value=1,
        max_value=24 * 60,
        help_text="Minimum minutes between two messages about an agent. Default: 10.",
    )
    repeat_hours = WholeField(
        required=False,
        min_value=0,
        max_value=WEEK_HOURS,
        help_text="Hours after which a lasting condition is announced again. 0: never. Default: 24.",
    )
    announces_end = Flag(required=False, help_text="Also announce the end of an alert. Default: false.")
    is_enabled = Flag(required=False, help_text="Default: true.")


class NewAlertRule(AlertRuleChange):
    kind = Choice(choices=AlertRule.Kind.values, help_text="The condition of the rule. It cannot be changed.")


class AlertRuleRow(serializers.ModelSerializer):  # type: ignore[misc]
    """An alert rule. Limits that its kind does not have are null."""

    agent_id = serializers.CharField(source="agent", help_text="Empty: all agents.")
    webhook_url = serializers.SerializerMethodField(help_text="Without its path. Empty: none.")
    slack_url = serializers.SerializerMethodField(help_text="Without its path. Empty: none.")

    class Meta:
        model = AlertRule
        fields: tuple[str, ...] = (
            *("id", "name", "kind", "minutes", "limit_usd", "percent", "last_runs", "min_runs", "agent_id", "label"),
            *("sends_email", "webhook_url", "slack_url", "group_minutes", "repeat_hours", "announces_end"),
            *("is_enabled", "created_by", "created_at", "updated_at"),
        )

    def get_webhook_url(self, rule: AlertRule) -> str:
        return str(rule.shown_urls.get("webhook_url", ""))

    def get_slack_url(self, rule: AlertRule) -> str:
        return str(rule.shown_urls.get("slack_url", ""))


class SavedAlertRule(AlertRuleRow):
    """A rule that was added or changed."""

    webhook_secret = serializers.SerializerMethodField(
        help_text="The signing secret of a new webhook, shown only here. Empty: the rule has no new webhook."
    )

    class Meta(AlertRuleRow.Meta):
        fields = (*AlertRuleRow.Meta.fields, "webhook_secret")

    def get_webhook_secret(self, rule: AlertRule) -> str:
        return str(self.context.get("secret", ""))


class AlertTestAnswer(serializers.Serializer):  # type: ignore[misc]
    """A test that a worker sends within seconds."""

    id = serializers.UUIDField()


class FindingRow(serializers.ModelSerializer):  # type: ignore[misc]
    """A run or flow run that meets the condition of a rule, or the state of an agent or the project."""

    run_id = serializers.UUIDField(allow_null=True, help_text="Null if the rule is not about single runs.")
    flow_run_id = serializers.UUIDField(allow_null=True, help_text="Of a finding about a flow run, instead of run_id.")

    class Meta:
        model = AlertFinding
        fields = ("run_id", "flow_run_id", "detail", "found_at", "ended_at")
        extra_kwargs: ClassVar = {"ended_at": {"help_text": "Null while the condition lasts."}}


class AlertRow(serializers.ModelSerializer):  # type: ignore[misc]
    """The findings of a rule for one agent."""

    rule_id = serializers.UUIDField()
    rule_name = serializers.CharField(source="rule.name")
    kind = serializers.ChoiceField(choices=AlertRule.Kind.values, source="rule.kind")
    agent_id = serializers.CharField(
        source="agent", help_text="`flow NAME` for runs of a flow. Empty for the project as a whole."
    )
    findings = FindingRow(many=True, source="newest_findings", help_text="The newest, at most 10.")

    class Meta:
        model = Alert
        fields = (
            *("id", "rule_id", "rule_name", "kind", "agent_id", "count", "opened_at", "last_seen_at", "closed_at"),
            *("announced_at", "findings"),
        )
        extra_kwargs: ClassVar = {
            "count": {"help_text": "Number of findings."},
            "last_seen_at": {"help_text": "Time of the newest finding."},
            "closed_at": {"help_text": "Null while it is open."},
            "announced_at": {"help_text": "Time of the last message. Null: none was sent."},
        }


class NewAlertMute(StrictSerializer):
    """Requires exactly one field: `rule_id`, `run_id` or `agent_id`."""

    rule_id = IdField(required=False, allow_null=True, default=None)
    run_id = IdField(required=False, allow_null=True, default=None)
    agent_id = LineField(required=False, allow_null=True, default=None, max_length=MAX_AGENT)
    minutes = WholeField(min_value=0, max_value=MAX_MINUTES, help_text="From now on. 0: end the mute.")


class AlertMuteRow(serializers.ModelSerializer):  # type: ignore[misc]
    """A mute. It stops messages, not the alerts."""

    rule_id = serializers.UUIDField(allow_null=True)
    run_id = serializers.UUIDField(allow_null=True)
    agent_id = serializers.CharField(source="agent", help_text="Empty: it mutes a rule or a run.")

    class Meta:
        model = AlertMute
        fields = ("id", "rule_id", "run_id", "agent_id", "until", "created_by", "created_at")


# --- Views ---

OPEN, CLOSED = "open", "closed"


class AlertRules(SecretOnce, ListView):
    """List the alert rules of a project, newest first."""

    serializer_class = AlertRuleRow
    #: A repeated request is refused, because the name exists. The answer has a secret that must not be stored.
    takes_idempotency_key = False

    def get_queryset(self) -> QuerySet[AlertRule]:
        return AlertRule.objects.filter(project=self.get_project()).order_by("-pk")

    @extend_schema(request=NewAlertRule, responses={201: OpenApiResponse(SavedAlertRule, "The new rule.")})
    def post(self, request: Request, **_: Any) -> Response:
        """Add an alert rule. Requires a signed-in admin; API keys may not add rules."""
        project, data = self.get_project(Action.CONFIGURE), body_of(NewAlertRule, request)
        rule, secret = alert_rule_changes.add_rule(project, data, by=self.principal)
        return Response(SavedAlertRule(rule, context={"secret": secret}).data, 201)


class AlertRuleDetail(SecretOnce):
    """Read an alert rule."""

    @extend_schema(responses=AlertRuleRow)
    def get(self, request: Request, **_: Any) -> Response:
        return Response(AlertRuleRow(self._rule(self.get_project())).data)

    @extend_schema(request=AlertRuleChange(partial=True), responses=SavedAlertRule)
    def patch(self, request: Request, **_: Any) -> Response:
        """Change an alert rule. Omitted fields stay unchanged. Disabling a rule closes its alerts."""
        project = self.get_project(Action.CONFIGURE)
        rule, data = self._rule(project), body_of(AlertRuleChange, request, partial=True)
        rule, secret = alert_rule_changes.change_rule(project, rule.pk, data, by=self.principal)
        return Response(SavedAlertRule(rule, context={"secret": secret}).data)

    @extend_schema(responses={204: OpenApiResponse(description="The rule has been removed.")})
    def delete(self, request: Request, **_: Any) -> Response:
        """Remove an alert rule with its alerts."""
        project = self.get_project(Action.CONFIGURE)
        alert_rule_changes.remove_rule(project, self._rule(project).pk, by=self.principal)
        return Response(status=204)

    def _rule(self, project: Project) -> AlertRule:
        return alert_rule_changes.rule_of(project, self.kwargs["rule_id"])


@extend_schema(responses={200: OpenApiResponse(AlertTestAnswer, "A worker sends it within seconds.")})
class AlertRuleTest(ActionView):
    """Send a test message by all channels of a rule."""

    serializer_class = EmptyBody
    required_action = Action.CONFIGURE
    is_body_optional = True

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        message = alert_rule_changes.send_test(project, self.kwargs["rule_id"], by=self.principal)
        return Response({"id": message.pk})


class AlertsQuery(PageQuery):
    state = Choice(choices=[OPEN, CLOSED], required=False, help_text="`open`: alerts that have not ended.")
    rule_id = IdField(required=False, help_text="Filter by rule.")


class Alerts(ListView):
    """List the alerts of a project, newest first."""

    serializer_class = AlertRow
    query_class: ClassVar = AlertsQuery

    def get_queryset(self) -> QuerySet[Alert]:
        rows = alerts_of(self.get_project(), open_only=self.query.get("state") == OPEN)
        if self.query.get("state") == CLOSED:
            rows = rows.exclude(closed_at=None)
        rule_id = self.query.get("rule_id")
        return rows.filter(rule=rule_id) if rule_id else rows


class AlertMutes(ActionView, ListView):
    """List the mutes of a project that have not ended, newest first."""

    serializer_class = AlertMuteRow
    body_class = NewAlertMute

    def get_queryset(self) -> QuerySet[AlertMute]:
        return AlertMute.objects.filter(project=self.get_project(), until__gt=database_clock.now()).order_by("-pk")

    @extend_schema(
        request=NewAlertMute,
        responses={
            200: OpenApiResponse(AlertMuteRow, "The mute."),
            204: OpenApiResponse(description="The mute has been ended."),
        },
    )
    def post(self, request: Request, **options: Any) -> HttpResponse:
        """Mute a rule, a run or an agent for a time: no messages are sent about it. Replaces an earlier mute of it."""
        return super().post(request, **options)

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        rule = alert_rule_changes.rule_of(project, data["rule_id"]) if data["rule_id"] else None
        run = run_in(project, data["run_id"]) if data["run_id"] else None
        new_mute = alert_rule_changes.mute(
            project, data["minutes"], by=self.principal, rule=rule, run=run, agent=data["agent_id"] or ""
        )
        return Response(AlertMuteRow(new_mute).data) if new_mute else Response(status=204)
