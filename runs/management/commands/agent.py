"""`agentops agent`: define agents, start runs of them, look at runs and steer them.

A door: may import identity and everything of runs that is no door.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import QuerySet

from agentops.projects.access import SYSTEM, Action, project_for, scoped
from agentops.projects.management.base import EXIT_INVALID, EXIT_USAGE, AddSubcommand, printable
from agentops.projects.models import Project
from runs import agents, inbox
from runs.creation import MAX_TITLE, UserTurn
from runs.engine import steering
from runs.engine.steering import Outcome
from runs.errors import InvalidAgent
from runs.management import arguments, deciding, forking, resuming, tailing
from runs.management.reading import STDIN, json_path, legible, read_definition, read_text
from runs.management.records import RUN_HELP, Records
from runs.management.references import find_run, operator
from runs.management.showing import cut, facts_of, lines_of, row_of, shown, with_reason
from runs.models import Agent, AgentRun
from runs.statuses import LIVE, RunStatus

EXIT_NOT_COMPLETED = 1
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
LOOK_EVERY_S = 0.25
POLICIES = (
    "A definition's policies say what becomes of a run that nobody watches. on_idle (it answers without calling done): "
    "nudge, done, fail, escalate, gate. on_dead (its worker is lost): done, fail, resume, escalate, gate. "
    "on_error (after all retries): fail, resume, escalate, gate. on_prompt (it calls ask_user): done, fail, escalate, "
    "gate. The README has their options."
)


class Command(Records):
    help = "Agents and their runs."

    def subcommands(self, add: AddSubcommand) -> None:
        apply = add("apply", self.apply, help="Make or change an agent by its definition.")
        apply.epilog = POLICIES
        apply.add_argument("file", metavar="FILE", help=f"TOML or JSON; {STDIN} reads standard input")
        apply.add_argument("--project", metavar="SLUG", required=True, help="slug or id")
        _add_run_options(add("run", self.run, help="Start a run and print its id."))
        ls = add("ls", self.ls, help="List runs, newest first.")
        ls.add_argument("--project", metavar="SLUG", help="slug or id (default: all projects)")
        ls.add_argument("--status", action="append", choices=[s.value for s in RunStatus], help="may be repeated")
        ls.add_argument(
            "--limit", metavar="N", type=arguments.limit, default=50, help=f"at most {arguments.MAX_ROWS} (default: 50)"
        )
        show = add("show", self.show, help="Everything about one run.")
        tail = add("tail", self.tail, help="Print a run's events as they come, until it ends or pauses.")
        resume = add("resume", self.resume, help="Go on with a paused run, as a new one; prints its id.")
        fork = add("fork", self.fork, help="Begin another run at a checkpoint of a run; prints its id.")
        pause = add("pause", self.pause, help="Pause a run after the tools of its turn.")
        stop = add("stop", self.stop, help="End a run.")
        send = add("send", self.send, help="Say something to a run, or answer what it asks.")
        outcome = add("outcome", self.outcome, help="Say what came of a tool call whose outcome is unknown.")
        for named in (show, tail, fork, pause, stop, send):
            named.add_argument("run", metavar="RUN", help=RUN_HELP)
        tail.add_argument(
            "--after", metavar="SEQ", type=arguments.seq, default=0, help="only the events after this one"
        )
        tail.add_argument("--no-follow", dest="follow", action="store_false", help="end after what there is by now")
        tail.add_argument("--json", action="store_true", help="as JSON, one event a line")
        _add_resume_options(resume)
        forking.add_options(fork)
        send.add_argument("message", metavar="MESSAGE", type=legible, help="the user turn")
        deciding.add_options(outcome)
        for each in (apply, ls, show, resume, fork, pause, stop, send, outcome):
            each.add_argument("--json", action="store_true", help="as JSON")
        self.add_records(add)

    def apply(self, options: dict[str, Any]) -> None:
        project = project_for(SYSTEM, options["project"], Action.CONFIGURE)
        definition = read_definition(options["file"])
        try:
            agent, outcome = agents.apply(project, definition, by=operator())
        except InvalidAgent as error:
            at = json_path(error.data["pointer"], definition)
            raise CommandError(printable(f"{options['file']}: {at}: {error}"), returncode=EXIT_INVALID) from error
        if options["json"]:
            self.write_json({"outcome": outcome, "id": agent.pk, "project": project.slug, **agent.frozen()})
        else:
            self.write_table(["outcome", "agent", "version"], [(outcome, agent.slug, agent.version)])

    def run(self, options: dict[str, Any]) -> None:
        project = project_for(SYSTEM, options["project"], Action.OPERATE)
        agent = agents.find(project, options["agent_id"])
        run = steering.create(
            operator(),
            project,
            agent,
            _prompt(agent, options),
            max_steps=options["max_steps"],
            title=options["title"],
            labels=list(dict.fromkeys(options["label"])),
        )
        if not options["json"]:
            self.stdout.write(str(run.pk))
            self.stdout.flush()
        if options["wait"] is not None:
            self._wait(run, options["wait"], as_json=options["json"])
        elif options["json"]:
            self.write_json(row_of(run))

    def _wait(self, run: AgentRun, seconds: float, *, as_json: bool) -> None:
        """Until the run is not live any more. It goes on, whatever becomes of us."""
        until = time.monotonic() + seconds
        interrupted = False
        try:
            while _refreshed(run).state in LIVE and time.monotonic() < until:
                time.sleep(min(LOOK_EVERY_S, max(until - time.monotonic(), 0)))
        except KeyboardInterrupt:
            interrupted = True
        facts = row_of(run)
        if as_json:
            self.write_json(facts)
        else:
            self.stdout.write(with_reason(facts))
        if interrupted:
            raise SystemExit(EXIT_INTERRUPTED)
        _require_completed(run)

    def ls(self, options: dict[str, Any]) -> None:
        project = project_for(SYSTEM, options["project"], Action.READ) if options["project"] is not None else None
        rows = [row_of(run) for run in _listed(project, options["status"])[: options["limit"]]]
        if options["json"]:
            self.write_json(rows)
            return
        headers = ["id", "project", "agent", "status", "reason", "steps", "created", "title"]
        width = 60 if self.stdout.isatty() else MAX_TITLE * 4
        self.write_table(headers, [_cells(row, width) for row in rows])

    def show(self, options: dict[str, Any]) -> None:
        facts = facts_of(find_run(options["run"]))
        if options["json"]:
            self.write_json(facts)
            return
        width = max(len(name) for name, _ in lines_of(facts)) + 2
        for name, text in lines_of(facts):
            self.stdout.write((name.ljust(width) if self.stdout.isatty() else f"{name}\t") + printable(text))

    def tail(self, options: dict[str, Any]) -> None:
        run = find_run(options["run"])
        screen = tailing.Screen(partial(self.stdout.write, ending=""))
        line = tailing.json_line if options["json"] else tailing.row
        pretty = self.stdout.isatty() and not options["json"]
        try:
            for batch in tailing.batches(run.pk, options["after"], follow=options["follow"]):
                for event in batch:
                    if pretty:
                        screen.show(event)
                    else:
                        self.stdout.write(line(event))
                self.stdout.flush()
        except KeyboardInterrupt:
            raise SystemExit(EXIT_INTERRUPTED) from None
        finally:
            screen.end_line()
        if options["follow"]:
            _require_completed(_refreshed(run))

    def resume(self, options: dict[str, Any]) -> None:
        resuming.check_usage(options)
        wanted = {name: options[name] for name in ("message", "max_steps", "kill")} | {"append": not options["replace"]}
        if options["all"]:
            self._resumed(resuming.resume_all(options, **wanted), options)
            return
        old = find_run(options["run"])
        if options["dry_run"]:
            self._resumed(steering.resume_many(operator(), [old], dry_run=True, **wanted), options)
            return
        done = steering.resume(operator(), old, **wanted)
        if options["json"]:
            self.write_json({**row_of(done.run), "already_resumed": done.already})
            return
        self.stdout.write(str(done.run.pk))
        if done.already:
            self.stderr.write(f"{old.pk} was already resumed; it went on as {done.run.pk}")

    def _resumed(self, outcomes: list[Outcome], options: dict[str, Any]) -> None:
        if options["json"]:
            self.write_json(resuming.as_json(outcomes))
        else:
            self.write_table(["", "run", "as"], resuming.lines_of(outcomes))

    def fork(self, options: dict[str, Any]) -> None:
        new = forking.fork(find_run(options["run"]), options)
        if options["json"]:
            self.write_json({**row_of(new), "forked_from": new.forked_from_id, "forked_at_step": new.forked_at_step})
        else:
            self.stdout.write(str(new.pk))

    def pause(self, options: dict[str, Any]) -> None:
        run = steering.pause(operator(), find_run(options["run"])).run
        self._steered(run, "pauses after the tools of its turn", options)

    def stop(self, options: dict[str, Any]) -> None:
        run = steering.stop(operator(), find_run(options["run"])).run
        self._steered(run, "stops at its next step", options)

    def send(self, options: dict[str, Any]) -> None:
        run = steering.send(operator(), find_run(options["run"]), options["message"]).run
        told = "hears it when it is resumed" if run.state is RunStatus.PAUSED else "hears it before its next model call"
        self._steered(run, told, options)

    def outcome(self, options: dict[str, Any]) -> None:
        done = deciding.resolve(find_run(options["run"]), options)
        self._steered(done.run, "runs the call again" if options["retry"] else "goes on with that", options)

    def _steered(self, run: AgentRun, still_to_come: str, options: dict[str, Any]) -> None:
        """What has become of the run, and what its worker has still to do."""
        facts = row_of(_refreshed(run))
        if options["json"]:
            self.write_json(facts)
            return
        done = run.state in (RunStatus.PAUSED, RunStatus.STOPPED) and "message" not in options
        self.stdout.write(f"{run.pk} {with_reason(facts)}" + ("" if done else f"; {still_to_come}"))


def _add_run_options(run: CommandParser) -> None:
    run.add_argument("agent_id", metavar="AGENT_ID", help="as its definition names it")
    run.add_argument("--project", metavar="SLUG", required=True, help="slug or id")
    prompt = run.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", type=legible, help="the first user turn (default: the recording's)")
    prompt.add_argument("--prompt-file", metavar="F", help=f"read it from a file; {STDIN} reads standard input")
    run.add_argument("--max-steps", metavar="N", type=arguments.whole, help="(default: as the agent says)")
    run.add_argument(
        "--title", metavar="T", type=arguments.title, default="", help="(default: the prompt's first line)"
    )
    run.add_argument("--label", metavar="L", type=arguments.label, action="append", default=[], help="may be repeated")
    run.add_argument(
        "--wait",
        metavar="SECONDS",
        nargs="?",
        type=arguments.seconds,
        const=float("inf"),
        help="follow the run until it ends or pauses and print its status; exit code 1 if it did not complete",
    )
    run.add_argument("--json", action="store_true", help="as JSON")


def _add_resume_options(resume: CommandParser) -> None:
    resume.add_argument("run", metavar="RUN", nargs="?", help=RUN_HELP)
    resume.add_argument("--all", action="store_true", help="every paused run, and with --kill every live one")
    resume.add_argument("--project", metavar="SLUG", help="of this project only (with --all)")
    resume.add_argument("--message", metavar="M", type=legible, help='the next user turn (default: "continue")')
    resume.add_argument("--replace", action="store_true", help="begin anew with the message as the prompt")
    resume.add_argument(
        "--max-steps", metavar="N", type=arguments.whole, help="of the new run (default: as the old one)"
    )
    resume.add_argument("--kill", action="store_true", help="take a run that is live from its worker first")
    resume.add_argument("--dry-run", action="store_true", help="only say what would be done")
    resume.add_argument("--yes", action="store_true", help="do not ask before live runs are taken")


def _prompt(agent: Agent, options: dict[str, Any]) -> UserTurn:
    if options["prompt"] is not None:
        return str(options["prompt"])
    if options["prompt_file"] is not None:
        text = legible(read_text(options["prompt_file"]))
        if len(text) > inbox.MAX_MESSAGE:
            problem = f"{options['prompt_file']}: a prompt has at most {inbox.MAX_MESSAGE} characters"
            raise CommandError(problem, returncode=EXIT_INVALID)
        return text
    recorded = agents.recorded_prompt(agent)
    if recorded is None:
        raise CommandError("a prompt is needed: give --prompt or --prompt-file", returncode=EXIT_USAGE)
    return recorded


def _refreshed(run: AgentRun) -> AgentRun:
    run.refresh_from_db(fields=["status", "status_reason", "step_count", "started_at", "completed_at", "error_message"])
    return run


def _require_completed(run: AgentRun) -> None:
    """End with another exit code than 0 for a run that came to anything else."""
    if run.state is RunStatus.COMPLETED:
        return
    why = f": {cut(shown(run.error_message))}" if run.error_message else ""
    if run.state is RunStatus.RESUMED:
        why = f"; it went on as {AgentRun.objects.get(resumed_from=run).pk}"
    raise CommandError(printable(f"the run is {with_reason(row_of(run))}{why}"), returncode=EXIT_NOT_COMPLETED)


def _listed(project: Project | None, statuses: list[str] | None) -> QuerySet[AgentRun]:
    runs = scoped(AgentRun.objects.select_related("project", "log"), SYSTEM)
    if statuses:
        runs = runs.filter(status__in=statuses)
    # Over all projects by id, which has an index of its own and is as old as the run.
    return runs.filter(project=project).order_by("-created_at", "-pk") if project else runs.order_by("-pk")


def _cells(row: dict[str, Any], width: int) -> list[object]:
    return [
        row["id"],
        row["project"],
        row["agent_id"],
        row["status"],
        row["status_reason"] or "-",
        f"{row['step_count']}/{row['step_limit']}",
        f"{row['created_at']:%Y-%m-%dT%H:%MZ}",
        cut(row["title"], width),
    ]
