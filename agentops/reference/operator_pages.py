"""Pages of docs/reference for operators: commands, exit codes, settings, and the kinds of secrets that are masked.

They are generated from the parsers of the commands, the declarations in settings.py and the table of token formats.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator

from django.core.management import get_commands, load_command_class

from agentops import cli, settings
from agentops.accounts import command_base
from agentops.accounts.command_parser import visible_commands
from agentops.base import backing_services
from agentops.base.redaction.secret_shapes import BUILT_IN_KINDS
from agentops.base.redaction.token_grammar import VendorFormat
from agentops.base.redaction.vendor_formats import FORMATS, GROUPS, SOURCES
from agentops.cli import COMMANDS
from agentops.cli_examples import EXAMPLES
from agentops.reference.markdown import code, flat, page, table

COMMANDS_INTRODUCTION = """\
`agentops COMMAND --help` prints the same on the command line. `make up` and `make install` put `agentops` into
`.venv/bin`; in a checkout, `./manage.py COMMAND` is the same. Beside a site that is up, commands work on the same runs.
`--json` prints an answer for programs. On a terminal, lists have headers, short IDs, relative times and colours
(`--no-color` and `NO_COLOR` turn them off); in a pipe, they are bare rows separated by tabs. `list` is the same as
`ls`. [Commands](../guides/control.md#commands) explains short IDs and the project in use, and
[Exit codes](exit-codes.md) lists the codes with which commands end."""


def commands_page() -> str:
    summary = table(["Command", "Purpose"], [[f"[`{name}`](#agentops-{name})", COMMANDS[name]] for name in COMMANDS])
    return page("Commands", COMMANDS_INTRODUCTION, summary, *(block for name in COMMANDS for block in _command(name)))


def _command(name: str) -> Iterator[str]:
    """Yield the blocks of the sections about a command and its subcommands."""
    command = load_command_class(get_commands()[name], name)
    # A new parser, because the parser of the command also has Django's own options.
    parser = argparse.ArgumentParser(description=command.help, add_help=False)
    command.add_arguments(parser)  # type: ignore[arg-type] # uses add_argument and add_subparsers alone
    yield from _command_sections(parser, f"agentops {name}", level=2)


def _command_sections(parser: argparse.ArgumentParser, name: str, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} {code(name) if level > 2 else name}"
    yield f"{parser.description.rstrip('.')}." if parser.description else ""
    choices = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not any(action.required for action in choices):
        yield from _arguments(parser, name)
    for action in choices:
        for subcommand, chosen in visible_commands(action).items():
            yield from _command_sections(chosen, f"{name} {subcommand}", level=level + 1)


def _arguments(parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    """Yield the synopsis of a command, the table of its arguments, and its epilog."""
    omitted = (argparse._HelpAction, argparse._SubParsersAction)
    arguments = [
        action for action in parser._actions if not isinstance(action, omitted) and action.help is not argparse.SUPPRESS
    ]
    required = [action for action in arguments if not action.option_strings or action.required]
    options = ["[OPTIONS]"] if len(required) < len(arguments) else []
    yield f"```text\n{' '.join([name, *map(_in_synopsis, required), *options])}\n```"
    meanings = [(action.help or "") % {"default": action.default} for action in arguments]
    yield table(["Argument", "Meaning"], zip(map(code, map(_spelling, arguments)), meanings, strict=True))
    yield parser.epilog if parser.epilog and "\n" not in parser.epilog else ""
    examples = "\n".join(f"agentops {example}" for example in EXAMPLES.get(name.partition(" ")[2], ()))
    yield f"```sh\n{examples}\n```" if examples else ""


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


EXIT_CODES_INTRODUCTION = """\
Every command ends with one of these codes. A code other than 0 comes with one line on standard error that says what is
wrong. With 1, the findings of the check or the status of the run are on standard output."""


def exit_codes_page() -> str:
    """Return the page. Raises `LookupError` if a constant `EXIT_…` is missing in EXIT_CODES."""
    constants = {
        name: value for module in (command_base, cli) for name, value in vars(module).items() if name[:5] == "EXIT_"
    }
    for name, value in constants.items():
        if isinstance(value, int) and value not in command_base.EXIT_CODES:
            raise LookupError(f"{name} ({value}) has no meaning in EXIT_CODES")
    rows = [[code(str(number)), meaning] for number, meaning in sorted(command_base.EXIT_CODES.items())]
    return page("Exit codes", EXIT_CODES_INTRODUCTION, table(["Code", "Meaning"], rows))


SETTINGS_INTRODUCTION = """\
Every setting is a variable of the environment. An unset or empty variable means the default. Lists are separated by
commas. A value that cannot be used ends the start with exit code 78: the message names the variable and what it
accepts, and never shows the value. A misspelt `AGENTOPS_…` variable is refused in the same way."""
GROUP = re.compile(r"^# --- (.+?) -+$", re.M)
#: A description in lines of `#:`, and the variable that the next line reads.
DESCRIBED = re.compile(r'((?:^ *#: .+\n)+).*?\benv\.\w+\(\n? *"(\w+)"', re.M)


def settings_page() -> str:
    """Return the page. Raises `LookupError` if a setting has no description."""
    groups = [(title, dict(_descriptions(source))) for title, source in _sources()]
    undescribed = settings.env.registered.keys() - {name for _, group in groups for name in group}
    if undescribed:
        raise LookupError(f"settings without a description: {', '.join(sorted(undescribed))}")
    return page("Settings", SETTINGS_INTRODUCTION, *(_settings_group(title, group) for title, group in groups if group))


def _sources() -> Iterator[tuple[str, str]]:
    """Return the title of each group of settings, and the source of its declarations."""
    source = inspect.getsource(settings).replace(
        "backing_services.read_telemetry(env)", inspect.getsource(backing_services)
    )
    _, *parts = GROUP.split(source)
    return zip(parts[::2], parts[1::2], strict=True)


def _descriptions(source: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the description of each setting that `source` declares."""
    for comment, name in DESCRIBED.findall(source):
        yield name, " ".join(line.strip().removeprefix("#: ") for line in comment.splitlines())


def _settings_group(title: str, group: dict[str, str]) -> str:
    rows = []
    for name, meaning in group.items():
        setting = settings.env.registered[name]
        rows.append([code(name), code(setting.default), setting.expected, meaning])
    return f"## {title}\n\n{table(['Variable', 'Default', 'Accepts', 'Meaning'], rows)}"


SECRETS_INTRODUCTION = """\
Secrets of these kinds are masked as `[REDACTED:KIND:DIGEST]` without any rule; see
[Secrets](../guides/security.md#secrets). An exception under *Settings*, *Redaction* stops masking a kind in a project,
except `agentops_key`."""

#: The masked texts, for each kind that is recognised without a prefix.
PLACES = {
    "agentops_key": "An API key of agentops, except its prefix.",
    "agentops_link": "A link of this site that works without a login: an invitation, an approval, a shared report.",
    "api_key": "A key that begins with `sk-`, as those of OpenAI, DeepSeek, Moonshot and others.",
    "authorization": "What follows `Authorization`.",
    "azure_client_secret": "A client secret of Microsoft Entra, from its `Q~` on.",
    "basic": "The credentials of `Basic`; `auth` in Docker's settings and `_auth` in those of npm.",
    "bearer": "The token of `Bearer`.",
    "cookie": "The values of a cookie header, and of `curl -b`.",
    "discord_webhook": "The token in the address of a webhook of Discord.",
    "ifttt_key": "The key in an address of IFTTT.",
    "jwt": "A JSON Web Token.",
    "key": (
        "A random value behind a name that ends in `api_key`, `access_key`, `secret_key` and the like; "
        "`client-key-data` of a kubeconfig."
    ),
    "password": (
        "A value behind a name such as `password`, `DB_PASS` or `--password`; in SQL (`IDENTIFIED BY`, `PASSWORD`), in "
        "`.netrc`, and in commands such as `curl -u`, `mysql -p`, `sshpass -p`, `docker login -p`, `htpasswd -b`."
    ),
    "private_key": "A private key in PEM, also if it is cut.",
    "secret": "A random value behind a name that ends in `secret`; a registered secret.",
    "slack_webhook": "The path of a webhook of Slack.",
    "teams_webhook": "The path of a webhook of Microsoft Teams.",
    "telegram_token": "The token of a bot of Telegram, behind its number.",
    "terraform_token": "A token of HCP Terraform, from its `.atlasv1.` on.",
    "token": "A random value behind a name that ends in `token`.",
    "url_password": "The password in a URL.",
    "url_signature": "The signature in a signed URL of Azure (`sig`), Amazon or Google (`X-…-Signature`).",
    "zapier_webhook": "The path of a webhook of Zapier.",
}
UNKNOWN = """\
Keys without a prefix of their own cannot be told from hashes and IDs: those of Mistral, Cohere, Deepgram, AssemblyAI,
Azure OpenAI, Datadog, Discord's bots and others, and secret access keys of AWS. They are masked behind a name,
such as `MISTRAL_API_KEY=` or `"token":`, or by a [rule](../guides/security.md#redaction-rules) of the project."""
FORMATS_INTRODUCTION = """\
`alnum*52` are 52 letters and digits, `word` contains `-` and `_` too, `hex` are lower-case hexadecimal digits, `lower`
and `upper` are digits and letters of one case. With `*`, any 16 characters after the prefix count, unless they are
words. With `=`, the length has to be exact. The last column names the projects that know a format. Its prefix,
alphabet and length are from there:"""


def secret_kinds_page() -> str:
    """Return the page. Raises `LookupError` if PLACES does not have the kinds that are masked without a prefix."""
    described = PLACES.keys() | {form.kind for form in FORMATS}
    if described != BUILT_IN_KINDS:
        raise LookupError(f"kinds without a description, or descriptions without a kind: {described ^ BUILT_IN_KINDS}")
    rows = [[code(kind), meaning] for kind, meaning in PLACES.items()]
    groups = (_group(title, rows) for title, rows in GROUPS.items())
    return page(
        "Kinds of secrets",
        SECRETS_INTRODUCTION,
        f"## By their place or shape\n\n{table(['Kind', 'What is masked'], rows)}",
        UNKNOWN,
        f"## By their prefix\n\n{FORMATS_INTRODUCTION}",
        "\n".join(_source(letter, *source) for letter, source in SOURCES.items()),
        *groups,
    )


def _group(title: str, rows: tuple[tuple[str, str, str, str, str], ...]) -> str:
    cells = [
        [form.vendor, code(form.prefix), code(flat(form.body)), code(form.kind), form.sources]
        for form in (VendorFormat(*row) for row in rows)
    ]
    return f"### {title}\n\n{table(['Whose', 'Prefix', 'Followed by', 'Kind', 'Known from'], cells)}"


def _source(letter: str, name: str, licence: str, commit: str) -> str:
    repository = f"[{name}](https://github.com/{name}) at {commit}" if commit else name
    return f"- {letter}: {repository}{f' ({licence})' if licence else ''}"
