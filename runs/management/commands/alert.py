"""`agentops alert`: the alerts of a project, its rules, tests of them, and mutes."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from agentops.accounts.access import Action
from agentops.accounts.command_base import AddSubcommand, AgentopsCommand, operator
from agentops.accounts.current_project import add_project, chosen_project
from agentops.base import database_clock
from runs.access import run_in
from runs.alerts import alert_rule_changes
from runs.alerts.alert_texts import alerts_of, describe, title_of
from runs.alerts.rule_definition import LIMIT_NAMES
from runs.management.agent.arguments import add_json
from runs.management.agent.references import find_run
from runs.management.output import write_rows
from runs.models import Alert, AlertMute, AlertRule

#: The number of newest alerts to list.
MAX_ALERTS = 50
#: Options that are fields of a rule.
_OPTIONS = (*LIMIT_NAMES, "agent", "label", "webhook_url", "slack_url", "group_minutes", "repeat_hours")


class Command(AgentopsCommand):
    help = "List the alerts of a project and its alert rules; add, remove and test rules; mute rules, agents and runs."

    def subcommands(self, add: AddSubcommand) -> None:
        listed = add("ls", self.list_alerts, help="List the newest alerts, or with --rules the rules of a project.")
        added = add("add", self.add_rule, help="Add a rule; prints the signing secret of a webhook once.")
        removed = add("rm", self.remove_rule, help="Remove a rule with its alerts.")
        tested = add("test", self.test_rule, help="Let a worker send a test by all channels of a rule.")
        muted = add("mute", self.mute, help="Send nothing about a rule, an agent or a run for a time.")
        add_project(listed, added, removed, tested, muted, takes_word=True)
        listed.add_argument("--rules", action="store_true", help="list the rules instead")
        listed.add_argument("--open", action="store_true", help="only alerts that are not over")
        add_json(listed)
        _add_rule_options(added)
        for parser in (removed, tested):
            parser.add_argument("rule", metavar="RULE", help="name or ID of the rule")
        what = muted.add_mutually_exclusive_group(required=True)
        what.add_argument("--rule", metavar="RULE", help="name or ID of a rule")
        what.add_argument("--agent", metavar="AGENT", help="name of an agent")
        what.add_argument("--run", metavar="RUN", help="ID or short ID of a run")
        muted.add_argument("minutes", metavar="MINUTES", type=int, help="length of the mute in minutes; 0 ends it")

    def list_alerts(self, options: dict[str, Any]) -> None:
        project = chosen_project(options, Action.READ)
        muted = alert_rule_changes.active_mutes(project, database_clock.now())
        if options["rules"]:
            rows = [_rule_row(rule, muted) for rule in alert_rule_changes.rules_of(project)]
        else:
            rows = [_alert_row(alert) for alert in alerts_of(project, open_only=options["open"])[:MAX_ALERTS]]
        write_rows(self, rows, options)

    def add_rule(self, options: dict[str, Any]) -> None:
        project = chosen_project(options, Action.CONFIGURE)
        values = {name: options[name] for name in _OPTIONS if options[name] is not None}
        values |= {"name": options["name"], "kind": options["kind"]}
        values |= {"sends_email": not options["no_email"], "announces_end": options["announce_end"]}
        rule, secret = alert_rule_changes.add_rule(project, values, by=operator())
        self.stdout.write(f"{rule.name}: {describe(rule)}")
        if secret:
            self.stdout.write(f"Signing secret of the webhook, shown only once: {secret}")

    def remove_rule(self, options: dict[str, Any]) -> None:
        project = chosen_project(options, Action.CONFIGURE)
        rule = alert_rule_changes.rule_of(project, options["rule"])
        alert_rule_changes.remove_rule(project, rule.pk, by=operator())
        self.stdout.write(f"{rule.name}: removed")

    def test_rule(self, options: dict[str, Any]) -> None:
        project = chosen_project(options, Action.CONFIGURE)
        rule = alert_rule_changes.rule_of(project, options["rule"])
        alert_rule_changes.send_test(project, rule.pk, by=operator())
        self.stdout.write(f"{rule.name}: a worker sends the test within seconds")

    def mute(self, options: dict[str, Any]) -> None:
        project = chosen_project(options, Action.OPERATE)
        what: dict[str, Any] = {"agent": options["agent"] or ""}
        if options["rule"]:
            what["rule"] = alert_rule_changes.rule_of(project, options["rule"])
        if options["run"]:
            what["run"] = run_in(project, find_run(options["run"]).pk)
        muted = alert_rule_changes.mute(project, options["minutes"], by=operator(), **what)
        self.stdout.write(f"muted until {muted.until:%Y-%m-%d %H:%M:%S} UTC" if muted else "not muted")


def _add_rule_options(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the rule, unique in the project")
    parser.add_argument("kind", metavar="KIND", choices=AlertRule.Kind.values, help=", ".join(AlertRule.Kind.values))
    parser.add_argument(
        "--minutes", type=int, metavar="N", help="time without an event (stalled: 15, waiting: 0, sink: 60)"
    )
    parser.add_argument("--limit-usd", metavar="X", help="limit in US dollars (run_cost, day_cost)")
    parser.add_argument("--percent", type=int, metavar="N", help="share of failed runs (error_rate: 50)")
    parser.add_argument("--last-runs", type=int, metavar="N", help="newest runs that are counted (error_rate: 20)")
    parser.add_argument("--min-runs", type=int, metavar="N", help="fewest runs that are judged (error_rate: 5)")
    parser.add_argument("--agent", metavar="AGENT", help="only runs of this agent; 'flow NAME': of this flow")
    parser.add_argument("--label", metavar="LABEL", help="only runs with this label")
    parser.add_argument("--no-email", action="store_true", help="do not notify operators and admins")
    parser.add_argument("--webhook-url", metavar="URL", help="URL that receives signed JSON")
    parser.add_argument("--slack-url", metavar="URL", help="incoming webhook of Slack or a compatible program")
    parser.add_argument(
        "--group-minutes", type=int, metavar="N", help="least time between messages of an agent (default: 10)"
    )
    parser.add_argument(
        "--repeat-hours", type=int, metavar="N", help="repeat an alert that lasts; 0: never (default: 24)"
    )
    parser.add_argument("--announce-end", action="store_true", help="also announce the end of an alert")


def _rule_row(rule: AlertRule, muted: list[AlertMute]) -> dict[str, Any]:
    until = next((mute.until for mute in muted if mute.rule_id == rule.pk), None)
    sent_to = ["email"] if rule.sends_email else []
    return {
        "name": rule.name,
        "kind": rule.kind,
        "says": describe(rule),
        "state": "enabled" if rule.is_enabled else "disabled",
        "muted_until": until,
        "sent_to": ", ".join([*sent_to, *(name.removesuffix("_url") for name in rule.shown_urls)]),
        "id": str(rule.pk),
    }


def _alert_row(alert: Alert) -> dict[str, Any]:
    return {
        "opened_at": alert.opened_at,
        "state": "open" if alert.closed_at is None else "over",
        "title": title_of(alert.rule, alert.agent, alert.count, ""),
        "rule": alert.rule.name,
        "count": alert.count,
        "closed_at": alert.closed_at,
        "runs": ", ".join(str(each.subject_id) for each in getattr(alert, "newest_findings", []) if each.subject_id),
    }
