"""docs/reference/settings.md: all environment variables, from the declarations in settings.py."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from agentops import settings
from agentops.base import telemetry_settings
from agentops.base.env import Setting
from agentops.reference.markdown import code, page, table

INTRODUCTION = """\
Every setting is a variable of the environment. An unset or empty variable means the default. Lists are separated by
commas. A value that cannot be used ends the start with exit code 78: the message names the variable and what it
accepts, and never shows the value. A misspelt `AGENTOPS_…` variable is refused in the same way."""
GROUP = re.compile(r"^# --- (.+?) -+$", re.M)
#: A description in lines of `#:`, and the variable that the next line reads.
DESCRIBED = re.compile(r'((?:^ *#: .+\n)+).*?\benv\.\w+\(\n? *"(\w+)"', re.M)


def settings_page() -> str:
    """Return the page. Raise LookupError if a setting has no description."""
    groups = [(title, dict(_descriptions(source))) for title, source in _sources()]
    undescribed = settings.env.registered.keys() - {name for _, group in groups for name in group}
    if undescribed:
        raise LookupError(f"settings without a description: {', '.join(sorted(undescribed))}")
    return page("Settings", INTRODUCTION, *(_group(title, group) for title, group in groups if group))


def _sources() -> Iterator[tuple[str, str]]:
    """Yield the groups of the declarations with their source."""
    source = inspect.getsource(settings).replace("telemetry_settings.read(env)", inspect.getsource(telemetry_settings))
    _, *parts = GROUP.split(source)
    return zip(parts[::2], parts[1::2], strict=True)


def _descriptions(source: str) -> Iterator[tuple[str, str]]:
    for comment, name in DESCRIBED.findall(source):
        yield name, " ".join(line.strip().removeprefix("#: ") for line in comment.splitlines())


def _group(title: str, group: dict[str, str]) -> str:
    rows = [_row(name, settings.env.registered[name], meaning) for name, meaning in group.items()]
    return f"## {title}\n\n{table(['Variable', 'Default', 'Accepts', 'Meaning'], rows)}"


def _row(name: str, setting: Setting, meaning: str) -> list[str]:
    return [code(name), code(setting.default), setting.expected, meaning]
