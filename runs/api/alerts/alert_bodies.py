"""The bodies and answers of `…/alert-rules`, `…/alerts` and `…/alert-mutes`."""

from __future__ import annotations

from typing import ClassVar

from rest_framework import serializers

from runs.alerts.mutes import MAX_MINUTES
from runs.alerts.rule_definition import MAX_AGENT, MAX_RUNS, WEEK_HOURS, WEEK_MINUTES
from runs.api.requests.bodies import Choice, Flag, IdField, LineField, StrictSerializer, StringField, WholeField
from runs.models import Alert, AlertFinding, AlertMute, AlertRule

_URL = "Empty: none. Answers show it without its path."


def _limit(least: int, most: int, text: str) -> WholeField:
    return WholeField(required=False, allow_null=True, min_value=least, max_value=most, help_text=text)


class AlertRuleChange(StrictSerializer):
    """The fields of a rule that can be changed."""

    name = LineField(allow_blank=False, max_length=63, help_text="Unique in the project.")
    minutes = _limit(0, WEEK_MINUTES, "Of `run_stalled` (default 15), `run_waiting` (0), `sink_behind` (60).")
    limit_usd = serializers.DecimalField(
        12, 4, required=False, allow_null=True, help_text="Of `run_cost` and `day_cost`: US dollars."
    )
    percent = _limit(1, 100, "Of `error_rate` (default 50).")
    last_runs = _limit(1, MAX_RUNS, "Of `error_rate` (default 20): newest runs of the agent that are counted.")
    min_runs = _limit(1, MAX_RUNS, "Of `error_rate` (default 5): with fewer runs nothing is announced.")
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
        help_text="Between two messages about an agent. Default: 10.",
    )
    repeat_hours = WholeField(
        required=False, min_value=0, max_value=WEEK_HOURS, help_text="What lasts is repeated. 0: never. Default: 24."
    )
    announces_end = Flag(required=False, help_text="Also announce when it is over. Default: false.")
    is_enabled = Flag(required=False, help_text="Default: true.")


class NewAlertRule(AlertRuleChange):
    kind = Choice(choices=AlertRule.Kind.values, help_text="What the rule looks for. It cannot be changed.")


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
    """A run or flow run that a rule has found, or the state of an agent or the project."""

    run_id = serializers.UUIDField(allow_null=True, help_text="Null if the rule is not about single runs.")
    flow_run_id = serializers.UUIDField(allow_null=True, help_text="Of a finding about a flow run, instead of run_id.")

    class Meta:
        model = AlertFinding
        fields = ("run_id", "flow_run_id", "detail", "found_at", "ended_at")
        extra_kwargs: ClassVar = {"ended_at": {"help_text": "Null while it lasts."}}


class AlertRow(serializers.ModelSerializer):  # type: ignore[misc]
    """What a rule has found of one agent."""

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
    """Exactly one of `rule_id`, `run_id` and `agent_id`."""

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
