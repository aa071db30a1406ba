"""Tools of other packages: loaded, validated, and never able to break the site."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command

from runs.tools.builtin import BUILTIN
from runs.tools.catalogue import Registry, UnknownTool
from tests.support import engine

Install = Callable[..., None]

WEATHER = """
    from agentops.tools import ToolContext, tool

    @tool(effect="read", timeout_s=3)
    def weather(ctx: ToolContext, city: str) -> str:
        '''Return the weather of a city.'''
        return f"fine in {city}"

    _hidden = tool(name="hidden")(lambda: "")
    again = weather
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a module with entry points, like a package."""

    def install(module: str, source: str, **groups: dict[str, str]) -> None:
        engine.install_package(tmp_path, monkeypatch, module, source, groups)

    return install


def test_the_public_tools_of_a_module_are_added(install: Install) -> None:
    install("own_weather", WEATHER, tools={"acme": "own_weather", "same": "own_weather:weather"})
    registry = Registry(BUILTIN)

    assert registry.names() == ["http_fetch", "list_dir", "read_file", "weather"]
    [added] = [each for each in registry.entries() if each.name == "weather"]
    assert added.source == "entry point agentops.tools: acme = own_weather of own_weather 1.0"
    assert (added.part.effect, added.part.timeout_s) == ("read", 3)
    assert list(added.part.parameters_schema["properties"]) == ["city"]
    [fault] = registry.faults()
    assert str(fault) == (
        "entry point agentops.tools: same = own_weather:weather of own_weather 1.0: "
        f"There is already a tool named 'weather' ({added.source})."
    )


FAULTY = {
    "import": ("import no_such_library", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_library'"),
    "exit": ("raise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
    "async": (
        "from agentops.tools import tool\n@tool()\nasync def pieces():\n    yield 1",
        "cannot be loaded: TypeError: Tool 'pieces' must return its result, not yield it.",
    ),
    "effect": (
        "from agentops.tools import tool\n@tool(effect='sometimes')\ndef f(): ...",
        "cannot be loaded: ValueError: 'sometimes' is not a valid Effect",
    ),
    "empty": ("NOTHING = 1", "contains no tools; decorate a function with @tool"),
    "taken": (
        "from agentops.tools import tool\n@tool()\ndef http_fetch(): ...",
        "There is already a tool named 'http_fetch' (built in).",
    ),
    "name": (
        "from agentops.tools import tool\n@tool(name='a b')\ndef f(): ...",
        "A tool cannot be named 'a b': 1 to 64 of A-Z a-z 0-9 _ -, and not 'recorded'.",
    ),
}


@pytest.mark.parametrize("case", FAULTY)
def test_an_invalid_module_is_reported_and_skipped(case: str, install: Install, settings, caplog) -> None:
    source, reason = FAULTY[case]
    install(f"faulty_{case}", source)
    settings.AGENTOPS_TOOL_MODULES = [f"faulty_{case}"]
    registry = Registry(BUILTIN)

    with pytest.raises(UnknownTool, match=r"Extensions that cannot be used: 1; see `agentops tools`"):
        registry.resolve(["later"], {})

    [fault] = registry.faults()
    assert str(fault) == f"module 'faulty_{case}' of AGENTOPS_TOOL_MODULES: {reason}"
    assert registry.resolve(["http_fetch"], {}).get("http_fetch") is BUILTIN[0]
    assert str(fault) in caplog.text


def test_the_system_checks_report_invalid_modules(settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.AGENTOPS_TOOL_MODULES = ["no_such_module"]
    monkeypatch.setattr("runs.tools.catalogue.TOOLS", Registry(BUILTIN))

    [message] = [each for each in run_checks() if each.id == "agentops.W005"]
    assert "module 'no_such_module' of AGENTOPS_TOOL_MODULES" in message.msg
    assert not message.is_serious()


def test_a_function_without_the_decorator_is_not_a_tool(install: Install) -> None:
    install("own_plain", "def plain(): ...", tools={"plain": "own_plain:plain"})
    [fault] = Registry().faults()
    assert fault.reason == "names a function that is not decorated with @tool; expected a tool, or a module with tools"


def test_the_command_lists_tools_and_errors(install: Install, monkeypatch: pytest.MonkeyPatch, settings) -> None:
    install("own_sky", WEATHER, tools={"sky": "own_sky"})
    settings.AGENTOPS_TOOL_MODULES = ["no_such_module"]
    monkeypatch.setattr("runs.management.commands.tools.TOOLS", Registry(BUILTIN))
    out = io.StringIO()

    with pytest.raises(CommandError, match=r"module 'no_such_module' of AGENTOPS_TOOL_MODULES: cannot be loaded"):
        call_command("tools", stdout=out)
    row = next(line.split("\t") for line in out.getvalue().splitlines() if line.startswith("weather"))
    assert row[1:4] == ["read", "3 s", ""]
    assert row[4].startswith("entry point agentops.tools: sky = own_sky")

    shown = io.StringIO()
    call_command("tools", "weather", stdout=shown)
    assert json.loads(shown.getvalue())["parameters"]["required"] == ["city"]
    with pytest.raises(CommandError, match="tool not found: 'storm'"):
        call_command("tools", "storm")
