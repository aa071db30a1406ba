"""Ways to break a program, so that the rig must report a failure: each takes away one promise of durable functions.

The host installs them by name in the processes of a program. The undisturbed trip is not broken.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from agentops.durable.positions import Position, Positions
from agentops.durable.run import DurableRun
from tests.chaos.programs import interface

#: Maps names to functions that break the program in this process.
BROKEN: dict[str, Callable[[], None]] = {}
#: The variable that names one of them.
VARIABLE = "CHAOS_BROKEN"


def broken(function: Callable[[], None]) -> Callable[[], None]:
    BROKEN[function.__name__.replace("_", "-")] = function
    return function


def install() -> None:
    """Break the program if the environment says so."""
    if name := os.environ.get(VARIABLE):
        BROKEN[name]()


@broken
def once_as_read() -> None:
    """Declare that effects may be repeated."""
    for name, tool in interface.TOOLS.items():
        if tool.effect == "once":
            interface.TOOLS[name] = replace(tool, effect="read")


@broken
def tools_outside_of_steps() -> None:
    """Execute tools without a step, so that nothing of them is stored."""

    async def tool(self: DurableRun, call: Any, function: Any, /, **_: Any) -> Any:
        return await function(**call.arguments)

    DurableRun.tool = tool  # type: ignore[method-assign, assignment]


@broken
def forgotten_journal() -> None:
    """Give the steps other keys in each process, so that the journal has none of them."""
    begin = Positions.begin

    def begin_anew(self: Positions, *args: Any, **options: Any) -> Position:
        position = begin(self, *args, **options)
        return replace(position, key=f"{position.key}@{os.getpid()}")

    Positions.begin = begin_anew  # type: ignore[method-assign]


@broken
def changing_answers() -> None:
    """Change the answers of the model in each process."""
    script = interface.script

    def changing(*args: Any) -> list[interface.Turn]:
        return [replace(turn, text=f"{turn.text} {os.getpid()}") for turn in script(*args)]

    interface.script = changing
