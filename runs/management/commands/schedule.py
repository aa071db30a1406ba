"""`agentops schedule`: the schedules of a project, the outcomes of their due times, and immediate starts."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from agentops.accounts.access import Action
from agentops.accounts.command_base import AddSubcommand, AgentopsCommand, operator
from agentops.accounts.current_project import add_project, chosen_project
from runs.actions.schedules import schedule_changes
from runs.actions.schedules.schedule_lists import describe, describe_outcome
from runs.management.agent.arguments import add_json, parse_object
from runs.management.output import write_result, write_rows
from runs.models import Schedule, ScheduleStart

#: The number of newest starts to list.
MAX_STARTS = 50
#: Options that are fields of a schedule.
_OPTIONS = ("agent", "flow", "prompt", "cron", "time_zone", "overlap", "catch_up")


class Command(AgentopsCommand):
    help = "List the schedules of a project and their starts; add, change, pause and remove them; run one now."

    def subcommands(self, add: AddSubcommand) -> None:
        listed = add("ls", self.list_schedules, help="List the schedules of a project with their next due times.")
        added = add("add", self.add_schedule, help="Add a schedule of an agent or a flow.")
        changed = add("change", self.change_schedule, help="Change a schedule; other settings keep their values.")
        starts = add("starts", self.list_starts, help="List the outcomes of the newest due times of a schedule.")
        paused = add("pause", self.pause, help="Start nothing until the schedule is resumed.")
        resumed = add("resume", self.resume, help="Start runs at the due times from now on.")
        run = add("run", self.run_now, help="Start a run now, even if an earlier run has not ended.")
        removed = add("rm", self.remove, help="Remove a schedule with the list of its starts. Its runs stay.")
        add_project(listed, added, changed, starts, paused, resumed, run, removed, takes_word=True)
        added.add_argument("name", metavar="NAME", help="name of the schedule, unique in the project")
        for parser in (changed, starts, paused, resumed, run, removed):
            parser.add_argument("schedule", metavar="SCHEDULE", help="name or ID of the schedule")
        changed.add_argument("--name", metavar="NAME", help="new name")
        for parser in (added, changed):
            _add_options(parser)
        for parser in (listed, starts, run):
            add_json(parser)

    def list_schedules(self, options: dict[str, Any]) -> None:
        project = chosen_project(options, Action.READ)
        rows = [_row(schedule) for schedule in schedule_changes.schedules_of(project)]
        if options["json"]:
            self.write_json(rows)
        elif rows:
            cells = [
                [", ".join(map(str, cell)) if isinstance(cell, list) else cell for cell in row.values()] for row in rows
            ]
            self.write_table([name.replace("_", " ") for name in rows[0]], cells)

    def add_schedule(self, options: dict[str, Any]) -> None:
        project = chosen_project(options, Action.OPERATE)
        values = {**_values(options), "name": options["name"]}
        schedule = schedule_changes.add_schedule(project, values, by=operator())
        self.stdout.write(f"{schedule.name}: {describe(schedule)}")

    def change_schedule(self, options: dict[str, Any]) -> None:
        values = _values(options) | ({"name": options["name"]} if options["name"] else {})
        if not values:
            raise CommandError("nothing to change: see `agentops schedule change --help`")
        schedule = self._change(options, values)
        self.stdout.write(f"{schedule.name}: {describe(schedule)}")

    def pause(self, options: dict[str, Any]) -> None:
        self.stdout.write(f"{self._change(options, {'is_enabled': False}).name}: paused")

    def resume(self, options: dict[str, Any]) -> None:
        self.stdout.write(f"{self._change(options, {'is_enabled': True}).name}: resumed")

    def list_starts(self, options: dict[str, Any]) -> None:
        project = chosen_project(options, Action.READ)
        schedule = schedule_changes.schedule_of(project, options["schedule"])
        write_rows(self, [_start_row(start) for start in schedule.starts.order_by("-pk")[:MAX_STARTS]], options)

    def run_now(self, options: dict[str, Any]) -> None:
        project = chosen_project(options, Action.OPERATE)
        schedule = schedule_changes.schedule_of(project, options["schedule"])
        run = schedule_changes.run_now(project, schedule.pk, by=operator())
        write_result(self, str(run.pk), options, {"run_id" if schedule.agent else "flow_run_id": str(run.pk)})

    def remove(self, options: dict[str, Any]) -> None:
        project = chosen_project(options, Action.OPERATE)
        schedule = schedule_changes.schedule_of(project, options["schedule"])
        schedule_changes.remove_schedule(project, schedule.pk, by=operator())
        self.stdout.write(f"{schedule.name}: removed")

    def _change(self, options: dict[str, Any], values: dict[str, Any]) -> Schedule:
        project = chosen_project(options, Action.OPERATE)
        schedule = schedule_changes.schedule_of(project, options["schedule"])
        return schedule_changes.change_schedule(project, schedule.pk, values, by=operator())


def _add_options(parser: CommandParser) -> None:
    parser.add_argument("--agent", metavar="AGENT", help="name of the agent to start")
    parser.add_argument("--flow", metavar="FLOW", help="name of the flow to start, instead of an agent")
    parser.add_argument("--prompt", metavar="TEXT", help="first user turn of each run")
    parser.add_argument("--inputs", metavar="JSON", help="inputs of each flow run, as a JSON object")
    parser.add_argument("--cron", metavar="EXPRESSION", help="due times in five fields, such as '0 9 * * 1-5'")
    parser.add_argument("--time-zone", metavar="ZONE", help="time zone of --cron (default: UTC)")
    parser.add_argument(
        "--every", metavar="S", type=int, help="seconds between due times, at least 60; instead of --cron"
    )
    parser.add_argument(
        "--overlap",
        choices=Schedule.Overlap.values,
        help="what happens if an earlier run is active (default: skip)",
    )
    parser.add_argument(
        "--catch-up", choices=Schedule.CatchUp.values, help="what is started after downtime (default: none)"
    )


def _values(options: dict[str, Any]) -> dict[str, Any]:
    values = {name: options[name] for name in _OPTIONS if options[name] is not None}
    if options["every"] is not None:
        values["every_s"] = options["every"]
    if options["inputs"] is not None:
        values["inputs"] = parse_object(options["inputs"], "--inputs")
    return values


def _row(schedule: Schedule) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "says": describe(schedule),
        "state": "enabled" if schedule.is_enabled else "paused",
        "next": [f"{each:%Y-%m-%d %H:%M}" for each in schedule_changes.next_times(schedule)],
        "problem": schedule_changes.problem_of(schedule),
        "id": str(schedule.pk),
    }


def _start_row(start: ScheduleStart) -> dict[str, Any]:
    return {
        "due_at": start.due_at,
        "outcome": start.outcome,
        "says": describe_outcome(start),
        "run": str(start.started_id or ""),
    }
