"""`…/alert-rules`, `…/alerts` and `…/alert-mutes`."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.projects.access import Action
from agentops.projects.models import Project
from runs.access import run_in
from runs.alerts import alert_rule_changes, mutes
from runs.alerts.alert_lists import alerts_of
from runs.api.action_views import ActionView
from runs.api.alerts.alert_bodies import (
    AlertMuteRow,
    AlertRow,
    AlertRuleChange,
    AlertRuleRow,
    AlertTestAnswer,
    NewAlertMute,
    NewAlertRule,
    SavedAlertRule,
)
from runs.api.base_views import ListView, SecretOnce
from runs.api.requests.bodies import Choice, IdField, document_of
from runs.api.requests.inputs import EmptyBody
from runs.api.requests.queries import PageQuery
from runs.models import Alert, AlertMute, AlertRule
from timeline import database_clock

OPEN, CLOSED = "open", "closed"


class AlertRules(SecretOnce, ListView):
    """List the alert rules of a project, newest first."""

    serializer_class = AlertRuleRow
    #: Rules have names for that, and the answer has a secret that must not be stored.
    takes_idempotency_key = False

    def get_queryset(self) -> QuerySet[AlertRule]:
        return AlertRule.objects.filter(project=self.get_project()).order_by("-pk")

    @extend_schema(request=NewAlertRule, responses={201: OpenApiResponse(SavedAlertRule, "The new rule.")})
    def post(self, request: Request, **_: Any) -> Response:
        """Add an alert rule. Requires a signed-in admin; API keys may not add rules."""
        project = self.get_project(Action.CONFIGURE)
        body = NewAlertRule(data=document_of(request))
        body.is_valid(raise_exception=True)
        rule, secret = alert_rule_changes.add_rule(project, body.validated_data, by=self.principal)
        return Response(SavedAlertRule(rule, context={"secret": secret}).data, 201)


class AlertRuleDetail(SecretOnce):
    """Read an alert rule."""

    @extend_schema(responses=AlertRuleRow)
    def get(self, request: Request, **_: Any) -> Response:
        return Response(AlertRuleRow(self._rule(self.get_project())).data)

    @extend_schema(request=AlertRuleChange(partial=True), responses=SavedAlertRule)
    def patch(self, request: Request, **_: Any) -> Response:
        """Change an alert rule. Fields that are left out stay. A rule that is disabled closes its alerts."""
        project = self.get_project(Action.CONFIGURE)
        rule = self._rule(project)
        body = AlertRuleChange(data=document_of(request), partial=True)
        body.is_valid(raise_exception=True)
        rule, secret = alert_rule_changes.change_rule(project, rule.pk, body.validated_data, by=self.principal)
        return Response(SavedAlertRule(rule, context={"secret": secret}).data)

    @extend_schema(responses={204: OpenApiResponse(description="The rule does not exist now.")})
    def delete(self, request: Request, **_: Any) -> Response:
        """Remove an alert rule with its alerts."""
        project = self.get_project(Action.CONFIGURE)
        alert_rule_changes.remove_rule(project, self._rule(project).pk, by=self.principal)
        return Response(status=204)

    def _rule(self, project: Project) -> AlertRule:
        return alert_rule_changes.rule_of(project, self.kwargs["rule_id"])


class AlertRuleTest(ActionView):
    """Send a test message by all channels of a rule."""

    serializer_class = EmptyBody
    required_action = Action.CONFIGURE
    is_body_optional = True

    @extend_schema(responses={200: OpenApiResponse(AlertTestAnswer, "A worker sends it within seconds.")})
    def post(self, request: Request, **options: Any) -> HttpResponse:
        return super().post(request, **options)

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        message = alert_rule_changes.send_test(project, self.kwargs["rule_id"], by=self.principal)
        return Response({"id": message.pk})


class AlertsQuery(PageQuery):
    state = Choice(choices=[OPEN, CLOSED], required=False, help_text="`open`: those that are not over.")
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

    serializer_class = NewAlertMute

    def get_queryset(self) -> QuerySet[AlertMute]:
        return AlertMute.objects.filter(project=self.get_project(), until__gt=database_clock.now()).order_by("-pk")

    def get_serializer_class(self) -> Any:
        return AlertMuteRow if self.request.method in ("GET", "HEAD") else NewAlertMute

    @extend_schema(
        request=NewAlertMute,
        responses={
            200: OpenApiResponse(AlertMuteRow, "The mute."),
            204: OpenApiResponse(description="It is not muted now."),
        },
    )
    def post(self, request: Request, **options: Any) -> HttpResponse:
        """Mute a rule, a run or an agent for a time: nothing is sent about it. Replaces an earlier mute of the same."""
        return super().post(request, **options)

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        rule = alert_rule_changes.rule_of(project, data["rule_id"]) if data["rule_id"] else None
        run = run_in(project, data["run_id"]) if data["run_id"] else None
        muted = mutes.mute(
            project, data["minutes"], by=self.principal, rule=rule, run=run, agent=data["agent_id"] or ""
        )
        return Response(AlertMuteRow(muted).data) if muted else Response(status=204)
