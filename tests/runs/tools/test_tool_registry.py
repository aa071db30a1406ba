"""Agents can name only registered tools, and tool names are unique.

May import runs.tools.
"""

from __future__ import annotations

import pytest

from runs.fixtures.playback import RecordedTools
from runs.tools.base import Tool
from runs.tools.builtin import BUILTIN
from runs.tools.catalogue import RECORDED, DuplicateTool, Registry, UnknownTool


def named(name: str) -> Tool:
    return Tool(name=name, description=f"The {name}.", parameters_schema={}, execute=lambda *_: name)


class Two:
    """A toolset of two tools, like an MCP server's."""

    def __init__(self, settings):
        self.tools = {f"{settings['prefix']}_{n}": named(f"{settings['prefix']}_{n}") for n in "ab"}

    def get(self, name):
        return self.tools.get(name)

    def definitions(self):
        return [each.definition for each in self.tools.values()]


def test_an_agent_gets_the_named_tools_in_order():
    registry = Registry([named("a"), named("b"), named("c")])

    chosen = registry.resolve(["c", "a", "c"], {})

    assert [each.name for each in chosen.definitions()] == ["c", "a"]
    assert chosen.get("a").name == "a"
    assert chosen.get("b") is None
    assert chosen.get("recorded") is None


def test_the_builtin_tools_can_be_registered():
    assert Registry(BUILTIN).names() == ["http_fetch", "list_dir", "read_file"]


def test_all_unknown_names_are_reported_together():
    with pytest.raises(UnknownTool) as caught:
        Registry([named("a")]).resolve(["x", "a", "y"], {})

    assert caught.value.names == ("x", "y")
    assert str(caught.value) == "Unknown tools: 'x', 'y'. Registered are: a."


def test_a_second_tool_with_the_same_name_is_refused():
    registry = Registry([named("a")])
    registry.register_toolset("many", Two)

    for add in (
        lambda: registry.register(named("a")),
        lambda: registry.register(named("many")),
        lambda: registry.register_toolset("a", Two),
        lambda: registry.register_toolset("many", Two),
    ):
        with pytest.raises(DuplicateTool, match="already a tool named"):
            add()


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 65, "a.b", "a\n", RECORDED])
def test_names_that_providers_do_not_accept_are_refused(name):
    with pytest.raises(ValueError, match="cannot be named"):
        Registry([named(name)])


def test_a_toolset_is_created_from_the_agent_s_settings():
    registry = Registry([named("a")])
    registry.register_toolset("many", Two)

    chosen = registry.resolve(["many", "a"], {"prefix": "p"})

    assert [each.name for each in chosen.definitions()] == ["a", "p_a", "p_b"]
    assert chosen.get("p_b").name == "p_b"


def test_a_toolset_with_a_duplicate_name_is_refused():
    registry = Registry([named("p_a")])
    registry.register_toolset("many", Two)

    with pytest.raises(DuplicateTool, match="'p_a'"):
        registry.resolve(["p_a", "many"], {"prefix": "p"})


def test_recorded_answers_any_name_but_a_named_tool_takes_precedence():
    registry = Registry([named("a")])
    registry.register_toolset(RECORDED, lambda settings: RecordedTools(lambda *_: None, settings=settings))

    chosen = registry.resolve([RECORDED, "a"], {})

    assert chosen.get("a").description == "The a."
    assert chosen.get("mcp:whatever, even this").description == "Answers from a recording."
    assert [each.name for each in chosen.definitions()] == ["a"]
