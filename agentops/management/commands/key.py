"""`agentops key`: create, list, rotate and revoke the API keys of a project."""

from __future__ import annotations

import argparse
import re
from datetime import datetime, timedelta
from typing import Any

from agentops.accounts.access import Action
from agentops.accounts.command_base import AddSubcommand, AgentopsCommand, operator
from agentops.accounts.current_project import add_project, chosen_project
from agentops.accounts.keys import OVERLAP, NewKey, create_key, find_key, revoke, rotate
from agentops.accounts.models import ApiKey, Scope
from agentops.base import database_clock

UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Command(AgentopsCommand):
    help = "Create, list, rotate and revoke API keys."

    def subcommands(self, add: AddSubcommand) -> None:
        create = add("create", self.create, help="Create an API key. It is shown only once.")
        add_project(create)
        create.add_argument(
            "--scopes", metavar="S,S", type=_comma_list, required=True, help=f"of {', '.join(Scope.values)}"
        )
        create.add_argument("--name", metavar="N", default="created on the command line", help="purpose of the key")
        create.add_argument(
            "--expires", metavar="90d", type=_duration, help="lifetime in m, h, d or w (default: unlimited)"
        )
        ls = add("ls", self.ls, help="List the keys of a project, newest first.")
        add_project(ls)
        rotated = add("rotate", self.rotate, help="Replace a key. The new one is shown only once.")
        rotated.add_argument("prefix", metavar="PREFIX", help="prefix of the key, or a shorter unique one")
        rotated.add_argument(
            "--overlap",
            metavar="1d",
            type=_duration,
            default=OVERLAP,
            help="time that the old key stays valid (default: 1d)",
        )
        revoked = add("revoke", self.revoke, help="Revoke a key.")
        revoked.add_argument(
            "prefix", metavar="PREFIX", help="prefix of the key, as ls prints it, or a shorter unique one"
        )
        for parser in (create, ls, rotated, revoked):
            parser.add_argument("--json", action="store_true", help="print JSON")

    def create(self, options: dict[str, Any]) -> None:
        project = chosen_project(options, Action.MANAGE)
        lifetime: timedelta | None = options["expires"]
        new = create_key(
            project,
            name=options["name"],
            scopes=options["scopes"],
            expires_at=database_clock.now() + lifetime if lifetime is not None else None,
            actor=operator(),
        )
        self._show(new, options)

    def ls(self, options: dict[str, Any]) -> None:
        project = chosen_project(options, Action.MANAGE)
        now = database_clock.now()
        rows = [_row(key, now) for key in project.api_keys.order_by("-created_at", "-id")]
        if options["json"]:
            self.write_json(rows)
            return
        headers = ["prefix", "state", "scopes", "expires_at", "last_used_at", "name"]
        self.write_table(headers, [[_cell(row[header]) for header in headers] for row in rows])

    def rotate(self, options: dict[str, Any]) -> None:
        self._show(rotate(find_key(options["prefix"]), actor=operator(), overlap=options["overlap"]), options)

    def revoke(self, options: dict[str, Any]) -> None:
        key = revoke(find_key(options["prefix"]), actor=operator())
        if options["json"]:
            self.write_json(_row(key, database_clock.now()))
        else:
            self.stdout.write(f"revoked {key.prefix}")

    def _show(self, new: NewKey, options: dict[str, Any]) -> None:
        if options["json"]:
            self.write_json({"key": new.plain, **_row(new.key, database_clock.now())})
        else:
            self.stdout.write(new.plain)


def _row(key: ApiKey, now: datetime) -> dict[str, Any]:
    return {
        "id": key.id,
        "prefix": key.prefix,
        "name": key.name,
        "scopes": key.scopes,
        "state": key.state(now).value,
        "created_by": key.created_by,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "last_used_at": key.last_used_at,
    }


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ",".join(value)
    return value.strftime("%Y-%m-%dT%H:%MZ") if isinstance(value, datetime) else str(value)


def _comma_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _duration(text: str) -> timedelta:
    match = re.fullmatch(r"([0-9]{1,5})([mhdw])", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a duration: use a form such as 90d, 12h, 30m or 4w")
    return timedelta(**{UNITS[match[2]]: int(match[1])})
