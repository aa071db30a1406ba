"""Graphs of LangGraph in installed packages, which a worker in this process executes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentops.accounts.models import Project
from runs.actions import run_actions
from runs.worker.in_process import drive_to_rest
from runs.worker.worker import Worker
from tests.support import engine, packaged
from tests.support.factories import make_project

SOURCE = '''
    import os
    from pathlib import Path
    from typing import TypedDict
    from langchain_core.tools import tool
    from langgraph.graph import START, StateGraph
    from langgraph.types import interrupt
    from agentops.durable.langgraph import AgentopsSaver

    class Order(TypedDict, total=False):
        item: str
        price: str
        size: str

    @tool
    def look_up(item: str) -> str:
        """Look up the price of an item."""
        with Path(os.environ["SHOP_LEDGER"]).open("a") as ledger:
            ledger.write(f"{item} {os.getpid()}\\n")
        return "500"

    def price(state: Order) -> Order:
        return {"price": look_up.invoke({"item": state["item"]})}

    def ask(state: Order) -> Order:
        return {"size": interrupt(f"Which size of {state['item']}?")}

    builder = StateGraph(Order)
    builder.add_sequence([("price", price), ("ask", ask)])
    builder.add_edge(START, "price")
    shop = builder.compile(checkpointer=AgentopsSaver(), name="shirts")
'''


@pytest.fixture
def graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> Iterator[Project]:
    engine.install_package(tmp_path, monkeypatch, "graph_agents", SOURCE, {"agents": {"shirts": "graph_agents:shop"}})
    monkeypatch.setenv("SHOP_LEDGER", str(tmp_path / "ledger"))
    with engine.added_parts():
        project = make_project("shop")
        packaged.register(project)
        yield project


def test_a_graph_continues_from_its_state_after_an_interrupt(graphs: Project, worker: Worker, tmp_path: Path) -> None:
    run = drive_to_rest(packaged.start(graphs, "shirts", '{"item": "shirt"}').pk, worker)
    assert (run.status, run.status_reason) == ("waiting", "input"), run.error_message
    run_actions.reply("oscar", run, "M")
    run = drive_to_rest(run.pk, worker)

    assert run.status == "completed", run.error_message
    assert '"size": "M"' in run.result
    assert packaged.words(tmp_path) == ["shirt"]
