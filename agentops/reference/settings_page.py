"""docs/reference/settings.md: all environment variables, from settings.py and settings_reference.py."""

from __future__ import annotations

from agentops.base.env import Setting
from agentops.reference.markdown import code, page, table
from agentops.settings import env
from agentops.site.settings_reference import GROUPS

INTRODUCTION = """\
Every setting is a variable of the environment. An unset or empty variable means the default. Lists are separated by
commas. A value that cannot be used ends the start with exit code 78: the message names the variable and what it
accepts, and never shows the value. A misspelt `AGENTOPS_…` variable is refused in the same way."""


def settings_page() -> str:
    described = {name for group in GROUPS.values() for name in group}
    if described != env.registered.keys():
        names = ", ".join(sorted(described ^ env.registered.keys()))
        raise LookupError(f"settings.py and settings_reference.py do not name the same variables: {names}")
    return page("Settings", INTRODUCTION, *(_group(title, group) for title, group in GROUPS.items()))


def _group(title: str, group: dict[str, str]) -> str:
    rows = [_row(name, env.registered[name], meaning) for name, meaning in group.items()]
    return f"## {title}\n\n{table(['Variable', 'Default', 'Accepts', 'Meaning'], rows)}"


def _row(name: str, setting: Setting, meaning: str) -> list[str]:
    return [code(name), code(setting.default), setting.expected, meaning]
