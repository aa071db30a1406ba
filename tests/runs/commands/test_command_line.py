"""What all commands share: names, examples, short IDs, the project in use, terminals, and `--watch`."""

from __future__ import annotations

import argparse
import io
import json
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class

from agentops import cli
from agentops.accounts import terminal
from agentops.accounts.access import SYSTEM
from agentops.accounts.command_parser import commands_of
from agentops.accounts.memberships import create_project
from agentops.accounts.models import Project
from agentops.base import database_clock
from agentops.cli_examples import EXAMPLES
from runs.actions import agent_definitions
from runs.management.agent import redraw
from runs.management.agent.references import find_row
from runs.models import Agent, AgentRun
from runs.statuses import RunStatus
from tests.support.command_line import DEFINITION, Command

MakeRun = Callable[..., AgentRun]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(*words: str, **options: Any) -> str:
    out = Terminal()
    call_command(*words, stdout=out, **options)
    return out.getvalue()


@pytest.fixture(autouse=True)
def _own_home(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.AGENTOPS_HOME = tmp_path
    settings.AGENTOPS_PROJECT = ""
    monkeypatch.setenv("COLUMNS", "80")


# --- Names and examples -------------------------------------------------------------------------------------------
def parser_of(name: str) -> argparse.ArgumentParser:
    return load_command_class(get_commands()[name], name).create_parser("agentops", name)


def test_every_help_ends_with_valid_examples() -> None:
    commands = {name: parser for top in cli.COMMANDS for name, parser in commands_of(parser_of(top), top)}

    assert set(EXAMPLES) == set(commands)
    for name, parser in commands.items():
        assert parser.format_help().endswith("".join(f"  agentops {example}\n" for example in EXAMPLES[name])), name
        for example in EXAMPLES[name]:
            command, *words = shlex.split(re.split(r" [|<>] ", example)[0])
            command = cli.ALIASES.get(command, command)
            assert command == name.split()[0]
            parser_of(command).parse_args(words)


def test_former_names_work_and_are_hidden(make_run: MakeRun, command: Command) -> None:
    run = make_run(RunStatus.COMPLETED)
    for words in (["ls"], ["show", str(run.pk)], ["calls", str(run.pk)], ["messages", str(run.pk)]):
        assert command("agent", *words) == command("run", *words)
    assert command("run", "list") == command("run", "ls")

    text = parser_of("agent").format_help()
    assert re.findall(r"^    ([a-z]+)", text, re.MULTILINE) == ["apply", "list", "ls", "show", "versions"]


def test_a_misspelt_subcommand_gets_a_suggestion(command: Command) -> None:
    with pytest.raises(CommandError, match=r"invalid choice: 'tial'; did you mean 'tail'\?"):
        command("run", "tial", "x")
    with pytest.raises(CommandError, match=r"'complted'; did you mean 'completed'\?"):
        command("run", "ls", "--status", "complted")


# --- Agents -------------------------------------------------------------------------------------------------------
def test_agents_are_listed_and_shown_with_their_versions(agent: Agent, command: Command) -> None:
    agent_definitions.apply(agent.project, {**DEFINITION, "max_steps": 7}, by="test")

    assert on_terminal("agent", "ls").splitlines()[1].split()[:2] == ["alpha", "player"]
    assert command("agent", "list").split("\t")[:3] == ["alpha", "player", "2"]
    assert json.loads(command("agent", "show", "player", "--json"))["max_steps"] == 7
    assert json.loads(command("agent", "show", "player", "--version", "1", "--json"))["max_steps"] == 50
    assert [row["changed"] for row in json.loads(command("agent", "versions", "player", "--json"))] == ["max_steps", ""]


def test_an_unknown_agent_gets_a_suggestion(agent: Agent, refused: Any) -> None:
    problem = "run not found: 'plaier', and no agent has this name; did you mean 'player'?"
    assert refused("agent", "show", "plaier") == (3, problem)
    assert refused("agent", "versions", "plaier") == (3, "agent not found: 'plaier'; did you mean 'player'?")
    assert refused("agent", "show", "player", "--version", "9") == (3, "agent player has no version 9")
    other = create_project("beta", "Beta", actor=SYSTEM)
    agent_definitions.apply(other, DEFINITION, by="test")
    assert refused("agent", "versions", "player")[0] == 4


# --- Short IDs ----------------------------------------------------------------------------------------------------
def test_short_ids_are_unique_in_a_list() -> None:
    twins = [UUID(f"01a22799-{index}000-7000-8000-000{digit}7f3a91c2") for index, digit in ((1, "a"), (2, "b"))]

    assert terminal.short_ids(twins) == dict(zip(twins, ["a7f3a91c2", "b7f3a91c2"], strict=True))
    assert terminal.short_ids([]) == {}


@pytest.mark.every_database
def test_a_run_is_found_by_the_end_of_its_id(make_run: MakeRun, command: Command, refused: Any) -> None:
    run, other = make_run(), make_run()
    shown = [line.split()[0] for line in on_terminal("run", "ls").splitlines()[1:]]

    assert shown == [other.pk.hex[-8:], run.pk.hex[-8:]]
    for reference in (run.pk.hex[-8:], str(run.pk)[-17:], run.pk.hex[-20:], str(run.pk).upper()[-12:], run.pk.hex):
        assert command("run", "show", reference).splitlines()[0] == f"run\t{run.pk}", reference
    assert refused("run", "stop", str(run.pk)[-3:])[0] == 4


@pytest.mark.every_database
@pytest.mark.django_db
def test_an_ambiguous_end_is_refused_with_the_candidates() -> None:
    first, second = (UUID(f"01a2279900007000800{digit}00000abc1234") for digit in "12")
    Project.objects.bulk_create(Project(pk=pk, slug=f"p-{pk.hex[19]}", name="P") for pk in (first, second))
    rows = Project.objects.all()

    with pytest.raises(CommandError, match=f"'abc1234' matches more than one project: {second}, {first}") as ambiguous:
        find_row(rows, "abc1234", "project")
    assert ambiguous.value.returncode == 4
    assert find_row(rows, first.hex[-13:], "project").pk == first
    with pytest.raises(CommandError, match="'xyz1' is not a valid project ID"):
        find_row(rows, "xyz1", "project")


def test_a_project_limits_where_a_run_is_looked_for(make_run: MakeRun, command: Command, refused: Any) -> None:
    run = make_run()
    create_project("beta", "Beta", actor=SYSTEM)

    assert command("run", "calls", run.pk.hex[-8:], "--project", "alpha") == ""
    assert refused("run", "calls", run.pk.hex[-8:], "--project", "beta")[0] == 3


# --- The project in use -------------------------------------------------------------------------------------------
def test_the_option_comes_before_the_variable_and_that_before_the_choice(
    make_run: MakeRun, command: Command, settings: Any, refused: Any, tmp_path: Path
) -> None:
    make_run()
    for slug in ("beta", "gamma"):
        create_project(slug, slug, actor=SYSTEM)

    assert refused("project", "show")[0] == 3
    assert command("project", "use", "beta") == f"using beta ({tmp_path / 'project'})\n"
    assert (command("run", "ls"), command("sink", "ls")) == ("", "")
    assert "chosen by\t`agentops project use`\n" in command("project", "show")
    assert len(command("run", "ls", "--all-projects").splitlines()) == 1
    assert len(command("run", "ls", "--project", "alpha").splitlines()) == 1
    settings.AGENTOPS_PROJECT = "gamma"
    assert json.loads(command("project", "show", "--json"))["slug"] == "gamma"
    settings.AGENTOPS_PROJECT = ""
    assert command("project", "use", "--none") == "no project in use\n"
    assert len(command("run", "ls").splitlines()) == 1


def test_former_names_ignore_the_project_in_use(make_run: MakeRun, command: Command) -> None:
    run = make_run(RunStatus.PAUSED)
    create_project("beta", "Beta", actor=SYSTEM)
    command("project", "use", "beta")

    assert len(command("agent", "ls").splitlines()) == 1
    assert command("agent", "defs").startswith("alpha\tplayer")
    assert command("run", "resume", "--all", "--dry-run") == ""
    assert str(run.pk) in command("agent", "resume", "--all", "--dry-run")


def test_a_command_without_a_project_says_how_to_choose_one(agent: Agent, refused: Any, settings: Any) -> None:
    for words in (["run", "start", "player"], ["sink", "ls"], ["budget"], ["key", "ls"], ["member", "ls"]):
        code, line = refused(*words)
        assert (code, "agentops project use SLUG" in line) == (2, True)
    assert refused("run", "ls", "--project", "alhpa") == (3, "project not found: 'alhpa'; did you mean 'alpha'?")
    settings.AGENTOPS_PROJECT = "gone"
    assert refused("run", "ls") == (3, "project not found: 'gone' (from AGENTOPS_PROJECT)")


@pytest.mark.parametrize(
    "words",
    [
        "sink add alpha jsonl x --option path=x",
        "sink add alpha --option path=x jsonl x",
        "sink add jsonl x --option path=x --project alpha",
        "sink add --project=alpha jsonl x",
        "sink add --proj alpha jsonl x",
    ],
)
def test_the_first_word_can_be_the_project(words: str) -> None:
    name, *rest = words.split()
    options = parser_of(name).parse_args(rest)

    assert (options.project, options.kind, options.name) == ("alpha", "jsonl", "x")


def test_a_price_needs_the_option_to_be_of_a_model() -> None:
    def parsed(words: str) -> tuple[str | None, str | None]:
        options = parser_of("price").parse_args(words.split())
        return options.project, options.model

    assert parsed("alpha") == ("alpha", None)
    assert parsed("alpha gpt --input 3") == ("alpha", "gpt")
    assert parsed("--project alpha gpt") == ("alpha", "gpt")
    assert parsed("gpt --project alpha") == ("alpha", "gpt")


# --- Terminals ----------------------------------------------------------------------------------------------------
def test_lists_fit_80_columns_and_times_are_relative(make_run: MakeRun, command: Command) -> None:
    run = make_run(RunStatus.PAUSED, "A title " + "that is long " * 20)
    AgentRun.objects.filter(pk=run.pk).update(created_at=database_clock.now() - timedelta(minutes=3, seconds=5))
    header, line = on_terminal("run", "ls").splitlines()

    assert header.split()[0] == "ID"
    assert "3 min ago" in line
    assert line.endswith("…")
    assert max(len(header), len(line)) <= 80
    shown = on_terminal("run", "show", str(run.pk))
    assert re.search(r"^created +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(3 min ago\)$", shown, re.MULTILINE)
    assert re.search(r"^created\t\S+T\S+Z$", command("run", "show", str(run.pk)), re.MULTILINE)
    assert not on_terminal("run", "ls", "--status", "failed").startswith("ID")


def test_columns_without_space_are_left_out(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(RunStatus.PAUSED)
    assert "STEPS" not in on_terminal("run", "ls").splitlines()[0].split()
    monkeypatch.setenv("COLUMNS", "160")
    assert on_terminal("run", "ls").splitlines()[0].split() == [
        *("ID", "PROJECT", "AGENT", "STATUS", "REASON", "STEPS", "CREATED", "TITLE"),
    ]


def test_a_status_has_a_colour_and_red_is_for_failures(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(RunStatus.FAILED)
    make_run(RunStatus.PAUSED)
    listed = on_terminal("run", "ls", force_color=True)

    assert re.search(r"\x1b\[31mfailed", listed)
    assert re.search(r"\x1b\[33mpaused", listed)
    assert "\x1b" not in on_terminal("run", "ls", no_color=True)
    assert "\x1b" not in on_terminal("run", "ls", "--no-color")
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.wants_colours(is_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not terminal.wants_colours(is_terminal=True)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s ago"), (59, "59 s ago"), (60, "1 min ago"), (7200, "2 h ago"), (90_000, "1 d ago"), (-7200, "in 2 h")],
)
def test_moments_are_relative(seconds: int, text: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert terminal.ago(now - timedelta(seconds=seconds), now) == text


# --- --watch ------------------------------------------------------------------------------------------------------
def test_watch_needs_a_terminal(make_run: MakeRun, refused: Any) -> None:
    run = make_run()
    for words in (["ls"], ["show", str(run.pk)]):
        code, line = refused("run", *words, "--watch")
        assert (code, "agentops run tail RUN" in line) == (2, True)


def test_watch_draws_until_ctrl_c(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run()
    drawn = []

    def later(_: float) -> None:
        drawn.append(True)
        if len(drawn) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(redraw.time, "sleep", later)
    out = Terminal()
    with pytest.raises(SystemExit) as ended:
        call_command("run", "ls", "--watch", stdout=out)

    assert ended.value.code == 130
    assert out.getvalue().count("Say hello") == 2


def test_watch_of_a_run_ends_with_the_run(make_run: MakeRun) -> None:
    run = make_run(RunStatus.STOPPED)

    assert on_terminal("run", "show", str(run.pk), "--watch").count("stopped") >= 1
