"""A program with an agent of LangChain, for tests that kill it: graph_desk.py DIRECTORY.

Each call of the model, of a tool and of a node adds a line to `ledger` in the directory. So does each step of the graph
before its checkpoint, when the writes of its nodes are stored. At the line that `die` names, the process kills itself,
once. AGENTOPS_URL and AGENTOPS_API_KEY name the site.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import before_model
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import tool

from agentops.durable import serve_forever
from agentops.durable.langgraph import AgentopsSaver, durable_function
from agentops.durable.langgraph.context import served_run
from tests.support.langchain_models import ScriptedChat, answer

DIRECTORY = Path(sys.argv[1])


def note(line: str) -> None:
    with (DIRECTORY / "ledger").open("a") as ledger:
        ledger.write(f"{line}\n")
    target = DIRECTORY / "die"
    if target.exists() and target.read_text() == line:
        target.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


@tool(extras={"agentops": {"effect": "read"}})
async def look_up(number: int) -> str:
    """Look up an order."""
    note(f"look_up {number}")
    return f"order {number}"


@tool
def pay(number: int) -> str:
    """Pay an order."""
    note(f"pay {number}")
    return f"paid {number}"


@before_model
def plan(state: Any, runtime: Any) -> None:
    note(f"plan {len(state['messages'])}")


class LoggingSaver(AgentopsSaver):
    """Adds a line before it stores a checkpoint."""

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        run = served_run()
        assert run is not None
        await run.is_stored()
        note(f"checkpoint {metadata['step']}")
        return await super().aput(config, checkpoint, metadata, new_versions)


def script(messages: Sequence[BaseMessage]) -> AIMessage:
    turn = sum(message.type == "ai" for message in messages)
    note(f"model {turn}")
    if turn < 3:
        return answer("", ("pay" if turn == 1 else "look_up", {"number": turn}, f"call{turn}"))
    texts = [str(message.text) for message in messages if message.type == "tool"]
    return answer(", ".join(sorted(texts)))


if __name__ == "__main__":
    logging.basicConfig(level="INFO", stream=sys.stderr)
    model = ScriptedChat(script=script)
    desk = create_agent(model, [look_up, pay], middleware=[plan], name="desk", checkpointer=LoggingSaver())
    serve_forever(durable_function(desk), poll_s=0.2)
