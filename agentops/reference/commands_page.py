"""docs/reference/commands.md: every command of agentops and its arguments, from the parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from django.core.management import get_commands, load_command_class

from agentops.accounts.management.overview import COMMANDS
from agentops.reference.markdown import code, page, table

INTRODUCTION = """\
`agentops COMMAND --help` prints the same on the command line. `make up` and `make install` put `agentops` into
`.venv/bin`; in a checkout, `./manage.py COMMAND` is the same. Beside a site that is up, commands work on the same runs.
`--json` prints an answer for programs. On a terminal, lists have headers and aligned columns; in a pipe, they are bare
rows separated by tabs. [Exit codes](exit-codes.md) lists the codes with which commands end."""


def commands_page() -> str:
    summary = table(["Command", "Purpose"], [[f"[`{name}`](#agentops-{name})", COMMANDS[name]] for name in COMMANDS])
    return page("Commands", INTRODUCTION, summary, *(block for name in COMMANDS for block in _command(name)))


def _command(name: str) -> Iterator[str]:
    command = load_command_class(get_commands()[name], name)
    parser = argparse.ArgumentParser(description=command.help, add_help=False)
    # Without Django's own options, which every command has.
    command.add_arguments(parser)  # type: ignore[arg-type] # uses add_argument and add_subparsers alone
    yield from _command_sections(parser, f"agentops {name}", level=2)


def _command_sections(parser: argparse.ArgumentParser, name: str, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} {code(name) if level > 2 else name}"
    yield _sentence(parser.description)
    choices = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not any(action.required for action in choices):
        yield from _arguments(parser, name)
    for action in choices:
        for subcommand, chosen in action.choices.items():
            yield from _command_sections(chosen, f"{name} {subcommand}", level=level + 1)


def _arguments(parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    omitted = (argparse._HelpAction, argparse._SubParsersAction)
    arguments = [action for action in parser._actions if not isinstance(action, omitted)]
    words = [name, *map(_in_synopsis, filter(_is_in_synopsis, arguments)), *_options(arguments)]
    yield f"```text\n{' '.join(words)}\n```"
    yield table(["Argument", "Meaning"], [[code(_spelling(action)), _help(action)] for action in arguments])
    yield parser.epilog if parser.epilog and "\n" not in parser.epilog else ""


def _is_in_synopsis(action: argparse.Action) -> bool:
    return not action.option_strings or action.required


def _options(arguments: list[argparse.Action]) -> list[str]:
    return [] if all(map(_is_in_synopsis, arguments)) else ["[OPTIONS]"]


def _in_synopsis(action: argparse.Action) -> str:
    if action.option_strings or action.nargs is None:
        return _spelling(action)
    return {"?": "[{}]", "*": "[{} …]", "+": "{} …"}.get(str(action.nargs), "{}").format(_spelling(action))


def _spelling(action: argparse.Action) -> str:
    """Return the spelling of an argument: `FILE`, `--json`, `--limit N`, `--wait [SECONDS]`."""
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    if not action.option_strings:
        return str(value)
    if action.nargs == 0:
        return action.option_strings[-1]
    return f"{action.option_strings[-1]} {f'[{value}]' if action.nargs == '?' else value}"


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {"default": action.default}


def _sentence(text: str | None) -> str:
    return f"{text.rstrip('.')}." if text else ""
