"""The parser of commands: examples in the help, suggestions for misspelt words, hidden names, and `--project`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from django.core.management.base import CommandParser
from django.utils.module_loading import import_string

#: Command without the program → its examples. In the roof, which lower layers name and do not import.
EXAMPLES = "agentops.cli_examples.EXAMPLES"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suggestion that ends an error message; empty if no known word is similar."""
    similar = get_close_matches(word, list(known), n=1)
    return f"; did you mean {similar[0]!r}?" if similar else ""


def visible_commands(action: argparse._SubParsersAction[Any]) -> dict[str, argparse.ArgumentParser]:
    """Return the subcommands that the help lists: without aliases and former names."""
    # argparse lists those for which `help` was passed, and has no public way to them.
    return {each.dest: action.choices[each.dest] for each in action._choices_actions}


def commands_of(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the command `name` and its visible subcommands, with their parsers."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subcommand, chosen in visible_commands(action).items():
                yield from commands_of(chosen, f"{name} {subcommand}")


class ProjectOption(argparse._StoreAction):
    """The option `--project`. With `takes_word`, the first word may be the project too, as in `sink ls PROJECT`."""

    takes_word = False


class ProjectOptionOrWord(ProjectOption):
    takes_word = True


class CommandLineParser(CommandParser):
    """A parser of a command or a subcommand."""

    def format_help(self) -> str:
        examples: Sequence[str] = import_string(EXAMPLES).get(self.prog.partition(" ")[2], ())
        lines = ["", "examples:", *(f"  agentops {example}" for example in examples)] if examples else []
        return super().format_help() + "".join(f"{line}\n" for line in lines)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if args is not None and any(isinstance(each, ProjectOption) and each.takes_word for each in self._actions):
            args = self._with_project_option(list(args))
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise `ArgumentError` if `value` is not one of the choices, with the most similar one."""
        if action.choices is None or value in action.choices:
            return
        known = action.choices
        if isinstance(action, argparse._SubParsersAction):
            known = visible_commands(action)
        names = [str(name) for name in known]
        problem = (
            f"invalid choice: {str(value)[:64]!r}{did_you_mean(str(value), names)} (choose from {', '.join(names)})"
        )
        raise argparse.ArgumentError(action, problem)

    def _with_project_option(self, args: list[str]) -> list[str]:
        """Return the arguments with the first word as `--project`, if there are more words than required.

        `sink add PROJECT KIND NAME` is older than `sink add --project PROJECT KIND NAME`, and still valid.
        """
        words = self._words(args)
        required = sum(not each.option_strings and each.nargs is None for each in self._actions)
        if words is None or len(words) <= required:
            return args
        first = words[0]
        return [f"--project={args[first]}", *args[:first], *args[first + 1 :]]

    def _words(self, args: list[str]) -> list[int] | None:
        """Return the positions of the arguments that are no options and no values of options.

        None if the project is passed as an option.
        """
        positions: list[int] = []
        position = 0
        while position < len(args):
            argument = args[position]
            if argument == "--":
                return [*positions, *range(position + 1, len(args))]
            if argument.startswith("-") and argument != "-":
                name, sign, _ = argument.partition("=")
                action = self._option_named(name)
                if isinstance(action, ProjectOption):
                    return None
                position += action is not None and action.nargs is None and not sign
            else:
                positions.append(position)
            position += 1
        return positions

    def _option_named(self, name: str) -> argparse.Action | None:
        """Return the option with this name or unique prefix."""
        if name in self._option_string_actions:
            return self._option_string_actions[name]
        similar = {id(each): each for key, each in self._option_string_actions.items() if key.startswith(name)}
        return next(iter(similar.values())) if len(similar) == 1 else None
