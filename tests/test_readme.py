"""README.md's table of settings and agentops/settings.py name the same variables with the same defaults."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| `(?P<name>[A-Z][A-Z0-9_]*)` \| (?:`(?P<default>[^`]*)` )?\| (?P<meaning>.+) \|$", re.MULTILINE)
#: A path that depends on where the code lies; the table gives it relative to the working directory.
COMPUTED = {"AGENTOPS_HOME": ".agentops"}


def table_of(text: str) -> dict[str, str]:
    return {row["name"]: row["default"] or "" for row in ROW.finditer(text)}


def written(default: ast.expr) -> str:
    """A default as one would write it into the environment; not a constant: empty."""
    try:
        value = ast.literal_eval(default)
    except ValueError:
        return ""
    if isinstance(value, list):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_by(source: str) -> dict[str, str]:
    """Every `env.reader("NAME", default)` in `source`."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="env")), args=[ast.Constant(value=str(name)), *rest]):
                defaults = rest + [keyword.value for keyword in node.keywords if keyword.arg == "default"]
                found[name] = COMPUTED.get(name) or (written(defaults[0]) if defaults else "")
    return found


def test_the_table_is_what_the_settings_read() -> None:
    table = table_of((ROOT / "README.md").read_text())
    settings = read_by((ROOT / "agentops" / "settings.py").read_text())

    assert table.keys() - settings.keys() == set(), "in README.md, but no setting"
    assert settings.keys() - table.keys() == set(), "settings that README.md does not explain"
    assert table == settings


def test_it_sees_a_variable_that_is_missing() -> None:
    assert read_by('X = env.integer("X_S", 3, low=0)\nY = env.boolean("Y", default=True)') == {"X_S": "3", "Y": "true"}
    assert table_of("| `X_S` | `3` | Words. |\n| `Y` | | Words. |\n| exit | code | none |") == {"X_S": "3", "Y": ""}
