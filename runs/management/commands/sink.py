"""`agentops sink`: the receivers of a project's events, and the events that they refused."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from agentops.accounts.access import SYSTEM, Action, project_for
from agentops.accounts.management.base import (
    EXIT_INVALID,
    EXIT_NOT_COMPLETED,
    EXIT_NOT_FOUND,
    AddSubcommand,
    AgentopsCommand,
    operator,
    printable,
)
from agentops.base.http import strict_json
from agentops.base.refusals import NotFound
from runs.management.agent.input_files import read_text
from runs.models import Delivery, Sink
from runs.queries import sink_health
from runs.telemetry import deliveries, sink_changes
from runs.telemetry.kind_catalogue import KINDS
from runs.telemetry.sink_changes import SinkChange

LISTED = 50


class Command(AgentopsCommand):
    help = "List, add, test and remove the sinks of a project, and send again what they refused."

    def subcommands(self, add: AddSubcommand) -> None:
        ls = add("ls", self.ls, help="List the sinks of a project, and those of the whole site.")
        _of_project(ls)
        new = add("add", self.add, help="Add a sink. It gets the events from now on.")
        _of_project(new)
        new.add_argument("kind", metavar="KIND", help=f"of {', '.join(KINDS.names())}")
        new.add_argument("name", metavar="NAME", help="unique in the project")
        text = "option of the kind, such as url=https://…"
        new.add_argument("--option", metavar="NAME=VALUE", action="append", default=[], type=_option, help=text)
        new.add_argument("--secrets", metavar="FILE", help="JSON object with the secrets of the kind; - reads stdin")
        new.add_argument("--events", metavar="T,T", type=_comma_list, help="event types to send, such as run.*,error")
        new.add_argument("--from-start", action="store_true", help="also send all events that are stored already")
        test = add("test", self.test, help="Send a test event now. Ends with 1 if it is not accepted.")
        _of_sink(test)
        listed = add("deliveries", self.deliveries, help=f"List the newest {LISTED} deliveries of a sink.")
        _of_sink(listed)
        listed.add_argument("--state", choices=Delivery.State.values, help="only those in this state")
        resend = add("resend", self.resend, help="Send a delivery again, with the same ID.")
        _of_sink(resend)
        which = resend.add_mutually_exclusive_group(required=True)
        which.add_argument("--delivery", metavar="ID", help="ID of the delivery")
        which.add_argument("--dead", action="store_true", help="all that were given up")
        rotate = add("rotate", self.rotate, help="Print a new secret of a webhook. The one before stays valid.")
        _of_sink(rotate)
        for name, is_enabled in (("enable", True), ("disable", False)):
            what = "Let a sink continue where it was." if is_enabled else "Send nothing for now. Its position is kept."
            switched = add(name, self.switch, help=what)
            _of_sink(switched)
            switched.set_defaults(is_enabled=is_enabled)
        _of_sink(add("rm", self.rm, help="Remove a sink, with its deliveries."))

    def ls(self, options: dict[str, Any]) -> None:
        project = project_for(SYSTEM, options["project"], Action.CONFIGURE)
        own, of_site = Sink.objects.filter(project=project), Sink.objects.filter(project=None)
        sinks = [*sink_health.with_health(own.order_by("name")), *sink_health.with_health(of_site.order_by("name"))]
        rows = [_row(sink) for sink in sinks]
        if options["json"]:
            return self.write_json(rows)
        headers = ["name", "kind", "state", "lag_s", "failures", "dead", "last_error"]
        return self.write_table(headers, [[row[header] for header in headers] for row in rows])

    def add(self, options: dict[str, Any]) -> None:
        project = project_for(SYSTEM, options["project"], Action.CONFIGURE)
        new = SinkChange(
            name=options["name"],
            config=dict(options["option"]),
            secrets=_secrets(options["secrets"]),
            event_types=options["events"],
        )
        sink, secret = sink_changes.create(
            project, options["kind"], new, by=operator(), from_start=options["from_start"]
        )
        if options["json"]:
            self.write_json({"id": sink.pk, "name": sink.name, "kind": sink.kind, "secret": secret})
        else:
            self.stdout.write(secret or f"added {sink.name}")

    def test(self, options: dict[str, Any]) -> None:
        delivery = deliveries.take(deliveries.queue_test(_find(options)))
        if delivery is not None:
            deliveries.attempt(delivery)
            delivery.refresh_from_db()
        self._write_deliveries([delivery] if delivery else [], as_json=options["json"])
        if delivery is None or delivery.state != Delivery.State.SENT:
            raise CommandError("the test was not accepted", returncode=EXIT_NOT_COMPLETED)

    def deliveries(self, options: dict[str, Any]) -> None:
        states = (options["state"],) if options["state"] else ()
        rows = sink_health.deliveries_of(_find(options), states)[:LISTED]
        self._write_deliveries(rows, as_json=options["json"])

    def resend(self, options: dict[str, Any]) -> None:
        sink, count = _find(options), 1
        if options["dead"]:
            count = sink_changes.resend_dead(sink, by=operator())
        else:
            rows = Delivery.objects.select_related("sink__project").filter(sink=sink)
            delivery = rows.filter(pk=_id(options["delivery"])).first()
            if delivery is None:
                raise CommandError("delivery not found", returncode=EXIT_NOT_FOUND)
            sink_changes.resend(delivery, by=operator())
        self._answer({"resent": count}, f"{count} sent again", options)

    def rotate(self, options: dict[str, Any]) -> None:
        secret = sink_changes.rotate_secret(_find(options), by=operator())
        self._answer({"secret": secret}, secret, options)

    def switch(self, options: dict[str, Any]) -> None:
        sink = sink_changes.change(_find(options), SinkChange(is_enabled=options["is_enabled"]), by=operator())
        state = "enabled" if sink.is_enabled else "disabled"
        self._answer({"name": sink.name, "is_enabled": sink.is_enabled}, f"{state} {sink.name}", options)

    def rm(self, options: dict[str, Any]) -> None:
        sink = _find(options)
        sink_changes.remove(sink, by=operator())
        self._answer({"removed": sink.name}, f"removed {sink.name}", options)

    def _answer(self, document: dict[str, Any], text: str, options: dict[str, Any]) -> None:
        if options["json"]:
            self.write_json(document)
        else:
            self.stdout.write(text)

    def _write_deliveries(self, rows: Iterable[Delivery], *, as_json: bool) -> None:
        names = ("id", "state", "event_type", "event_count", "attempts", "status_code", "error", "created_at")
        facts = [{name: getattr(row, name) for name in names} for row in rows]
        if as_json:
            self.write_json(facts)
        else:
            self.write_table(list(names), [[_shown(row[name]) for name in names] for row in facts])


def _of_project(parser: CommandParser) -> None:
    parser.add_argument("project", metavar="PROJECT", help="slug or ID")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _of_sink(parser: CommandParser) -> None:
    _of_project(parser)
    parser.add_argument("name", metavar="NAME", help="name of the sink")


def _find(options: dict[str, Any]) -> Sink:
    project = project_for(SYSTEM, options["project"], Action.CONFIGURE)
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
    if path is None:
        return None
    try:
        secrets = strict_json.parse(read_text(path))
    except strict_json.NotJson as error:
        raise CommandError(printable(f"{path}: not JSON: {error}"), returncode=EXIT_INVALID) from None
    if not isinstance(secrets, dict):
        raise CommandError(printable(f"{path}: a JSON object is expected"), returncode=EXIT_INVALID)
    return secrets


def _id(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise CommandError(f"{text[:64]!r} is not a valid delivery ID", returncode=EXIT_INVALID) from None


def _comma_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _shown(value: object) -> object:
    return "-" if value is None else value
