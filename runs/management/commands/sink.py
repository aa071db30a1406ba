"""`agentops sink`: the receivers of a project's events, and the events that they refused."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from django.core.management.base import CommandError, CommandParser

from agentops.accounts.access import Action
from agentops.accounts.command_base import EXIT_NOT_COMPLETED, AddSubcommand, AgentopsCommand, operator
from agentops.accounts.current_project import add_project, chosen_project
from agentops.base.http import strict_json
from agentops.base.refusals import NotFound
from runs.management.agent.arguments import add_json, parse_object, read_text
from runs.management.agent.references import find_row
from runs.management.output import write_result, write_rows
from runs.models import Delivery, Sink
from runs.queries import sink_health
from runs.telemetry import deliveries, sink_changes
from runs.telemetry.sink_changes import SinkChange
from runs.telemetry.sink_targets import KINDS

#: The number of newest deliveries to list.
MAX_DELIVERIES = 50


class Command(AgentopsCommand):
    help = "List, add, test and remove the sinks of a project, and send again what they refused."

    def subcommands(self, add: AddSubcommand) -> None:
        ls = add("ls", self.ls, help="List the sinks of a project, and those of the whole site.")
        _of_project(ls)
        new = add("add", self.add, help="Add a sink. It gets the events from now on.")
        _of_project(new)
        new.add_argument("kind", metavar="KIND", help=f"of {', '.join(KINDS.names())}")
        new.add_argument("name", metavar="NAME", help="unique in the project")
        help_text = "option of the kind, such as url=https://…"
        new.add_argument("--option", metavar="NAME=VALUE", action="append", default=[], type=_option, help=help_text)
        new.add_argument("--secrets", metavar="FILE", help="JSON object with the secrets of the kind; - reads stdin")
        new.add_argument("--events", metavar="T,T", type=_comma_list, help="event types to send, such as run.*,error")
        new.add_argument("--from-start", action="store_true", help="also send all stored events")
        test = add("test", self.test, help="Send a test event now. The exit code is 1 if it is not accepted.")
        _of_sink(test)
        listed = add("deliveries", self.deliveries, help=f"List the newest {MAX_DELIVERIES} deliveries of a sink.")
        _of_sink(listed)
        listed.add_argument("--state", choices=Delivery.State.values, help="only those in this state")
        resend = add("resend", self.resend, help="Send a delivery again, with the same ID.")
        _of_sink(resend)
        which = resend.add_mutually_exclusive_group(required=True)
        which.add_argument("--delivery", metavar="ID", help="ID or short ID of the delivery")
        which.add_argument("--dead", action="store_true", help="all that were given up")
        rotate = add(
            "rotate",
            self.rotate,
            help="Replace a webhook's secret and print the new one. The previous one stays valid.",
        )
        _of_sink(rotate)
        for name, is_enabled in (("enable", True), ("disable", False)):
            what = "Let a sink continue where it was." if is_enabled else "Send nothing for now. Its position is kept."
            switched = add(name, self.switch, help=what)
            _of_sink(switched)
            switched.set_defaults(is_enabled=is_enabled)
        _of_sink(add("rm", self.rm, help="Remove a sink, with its deliveries."))

    def ls(self, options: dict[str, Any]) -> None:
        project = chosen_project(options, Action.CONFIGURE)
        own, of_site = Sink.objects.filter(project=project), Sink.objects.filter(project=None)
        sinks = [*sink_health.with_health(own.order_by("name")), *sink_health.with_health(of_site.order_by("name"))]
        columns = ("name", "kind", "state", "lag_s", "failures", "dead", "last_error")
        write_rows(self, [_row(sink) for sink in sinks], options, columns)

    def add(self, options: dict[str, Any]) -> None:
        project = chosen_project(options, Action.CONFIGURE)
        new = SinkChange(
            name=options["name"],
            config=dict(options["option"]),
            secrets=_secrets(options["secrets"]),
            event_types=options["events"],
        )
        sink, secret = sink_changes.create(
            project, options["kind"], new, by=operator(), from_start=options["from_start"]
        )
        facts = {"id": sink.pk, "name": sink.name, "kind": sink.kind, "secret": secret}
        write_result(self, secret or f"added {sink.name}", options, facts)

    def test(self, options: dict[str, Any]) -> None:
        delivery = deliveries.claim(deliveries.queue_test(_find(options)))
        if delivery is not None:
            deliveries.attempt(delivery)
            delivery.refresh_from_db()
        self._write_deliveries([delivery] if delivery else [], options)
        if delivery is None or delivery.state != Delivery.State.SENT:
            raise CommandError("the test was not accepted", returncode=EXIT_NOT_COMPLETED)

    def deliveries(self, options: dict[str, Any]) -> None:
        states = (options["state"],) if options["state"] else ()
        rows = sink_health.deliveries_of(_find(options), states)[:MAX_DELIVERIES]
        self._write_deliveries(rows, options)

    def resend(self, options: dict[str, Any]) -> None:
        sink, count = _find(options), 1
        if options["dead"]:
            count = sink_changes.resend_dead(sink, by=operator())
        else:
            rows = Delivery.objects.select_related("sink__project").filter(sink=sink)
            sink_changes.resend(find_row(rows, options["delivery"], "delivery"), by=operator())
        write_result(self, f"{count} sent again", options, {"resent": count})

    def rotate(self, options: dict[str, Any]) -> None:
        secret = sink_changes.rotate_secret(_find(options), by=operator())
        write_result(self, secret, options, {"secret": secret})

    def switch(self, options: dict[str, Any]) -> None:
        sink = sink_changes.change(_find(options), SinkChange(is_enabled=options["is_enabled"]), by=operator())
        state = "enabled" if sink.is_enabled else "disabled"
        write_result(self, f"{state} {sink.name}", options, {"name": sink.name, "is_enabled": sink.is_enabled})

    def rm(self, options: dict[str, Any]) -> None:
        sink = _find(options)
        sink_changes.remove(sink, by=operator())
        write_result(self, f"removed {sink.name}", options, {"removed": sink.name})

    def _write_deliveries(self, rows: Iterable[Delivery], options: dict[str, Any]) -> None:
        optional = ("event_count", "status_code", "attempts", "error")
        names = ("id", "state", "event_type", "event_count", "attempts", "status_code", "error", "created_at")
        write_rows(
            self, [{name: getattr(row, name) for name in names} for row in rows], options, names, optional=optional
        )


def _of_project(parser: CommandParser) -> None:
    add_project(parser, takes_word=True)
    add_json(parser)


def _of_sink(parser: CommandParser) -> None:
    _of_project(parser)
    parser.add_argument("name", metavar="NAME", help="name of the sink")


def _find(options: dict[str, Any]) -> Sink:
    project = chosen_project(options, Action.CONFIGURE)
    rows = Sink.objects.select_related("project", "cursor")
    sink = rows.filter(project=project, name=options["name"]).first()
    # Sinks defined by the environment belong to no project.
    sink = sink or rows.filter(project=None, name=options["name"]).first()
    if sink is None:
        raise NotFound(f"no sink {options['name'][:64]!r} in this project", code="sink_not_found")
    return sink


def _row(sink: Any) -> dict[str, Any]:
    state = "enabled" if sink.is_enabled else f"disabled: {sink.disabled_reason}".removesuffix(": ")
    if sink.is_paused:
        state = "paused: the telemetry of the project is off"
    return {
        "name": sink.name,
        "kind": sink.kind,
        "state": state,
        "lag_s": sink_health.lag_s(sink) if sink.is_sending else 0,
        "failures": sink.cursor.failures,
        "dead": sink.dead_deliveries,
        "last_error": sink.cursor.last_error,
        "id": sink.pk,
        "of_site": sink.project_id is None,
    }


def _option(text: str) -> tuple[str, Any]:
    """Return an option. JSON numbers and lists are parsed; other values remain text."""
    name, sign, value = text.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not NAME=VALUE")
    try:
        return name, strict_json.parse(value)
    except strict_json.NotJson as error:
        if error.code == "invalid_json":
            return name, value
        raise argparse.ArgumentTypeError(f"{name[:64]}: {error}") from None


def _secrets(path: str | None) -> dict[str, Any] | None:
    return None if path is None else parse_object(read_text(path), path)


def _comma_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
