"""`agentops completion`: print a script for completion on Tab."""

from __future__ import annotations

import argparse
from typing import Any

import shtab
from django.core.management import get_commands, load_command_class
from django.core.management.base import CommandParser

from agentops import cli
from agentops.accounts.command_base import AgentopsCommand

SHELLS = ("bash", "zsh", "fish")
INSTALLATION = """\
to install it:
  bash  agentops completion bash > ~/.local/share/bash-completion/completions/agentops
  zsh   agentops completion zsh > "${fpath[1]}/_agentops"
  fish  agentops completion fish > ~/.config/fish/completions/agentops.fish"""
#: How the values of an argument are completed, by its metavar.
VALUES = {"FILE": shtab.FILE, "F": shtab.FILE, "DIR": shtab.DIRECTORY}


class Command(AgentopsCommand):
    help = "Print a completion script for bash, zsh or fish"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = INSTALLATION
        parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(shtab.complete(whole_parser(), shell=options["shell"]))


def whole_parser() -> argparse.ArgumentParser:
    """Return one parser for `agentops` and all its commands. (Django has a separate parser for each command.)"""
    parser = argparse.ArgumentParser(prog="agentops")
    parser.add_argument("--version", action="store_true", help="print the version")
    subparsers = parser.add_subparsers(parser_class=CommandParser)
    apps = get_commands()
    for name, purpose in cli.COMMANDS.items():
        command = subparsers.add_parser(name, help=purpose)
        load_command_class(apps[name], name).add_arguments(command)
        _complete_values(command)
    for name in sorted(cli.django_commands()):
        subparsers.add_parser(name, help="Django's")
    return parser


def _complete_values(parser: argparse.ArgumentParser) -> None:
    """Make shtab complete the arguments of a parser and its subcommands that are files and directories."""
    for action in parser._actions:  # argparse has no public way to its arguments
        if isinstance(action, argparse._SubParsersAction):
            for subcommand in action.choices.values():
                _complete_values(subcommand)
        elif action.metavar in VALUES:
            action.complete = VALUES[action.metavar]  # type: ignore[attr-defined] # read by shtab
