"""`AgentopsSaver` outside of runs: threads, synchronous methods, deltas, large and sealed states, and refusals."""

from __future__ import annotations

import asyncio
import base64
import operator
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from agentops.client import StateConflict
from agentops.durable import Codec
from agentops.durable.langgraph import AgentopsSaver, durable_function, rows
from runs.models import GraphThread, GraphValue
from runs.statuses import RunStatus
from tests.support.durable import DurableSite


class Odd:
    """A value that only pickle can store."""


class State(TypedDict, total=False):
    notes: Annotated[list[str], operator.add]


class Reversed(Codec):
    name = "reversed"

    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, text: str) -> str:
        return text[::-1]


@pytest.fixture
def saver_of(durable_site: DurableSite) -> Iterator[Callable[..., AgentopsSaver]]:
    """Return savers of the site, and close them."""
    savers: list[AgentopsSaver] = []

    def make(**options: Any) -> AgentopsSaver:
        savers.append(AgentopsSaver(url=durable_site.site.url, key=durable_site.site.key("work"), **options))
        return savers[-1]

    yield make
    for saver in savers:
        saver.close()


def chat(saver: AgentopsSaver) -> Any:
    def ask(state: State) -> State:
        return {"notes": [interrupt("name?")]}

    builder = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    return builder.compile(checkpointer=saver, name="chat")


def test_a_task_with_a_part_of_its_writes_is_not_done(saver_of: Callable[..., AgentopsSaver]) -> None:
    saver = saver_of()
    config: Any = {"configurable": {"thread_id": "parts", "checkpoint_ns": ""}}
    config = saver.put(config, empty_checkpoint(), {"source": "input", "step": -1, "parents": {}}, {})
    large = [("notes", "n" * rows.MAX_TEXT), ("notes", "m" * 2 * rows.MAX_TEXT)]
    saver.put_writes(config, [("notes", "small"), ("topic", "x")], "whole")
    saver.put_writes(config, large, "large")
    stored = saver.get_tuple(config)
    assert stored is not None
    assert {task for task, *_ in stored.pending_writes or ()} == {"whole", "large"}

    # As if the process had died between two requests.
    last = GraphValue.objects.filter(kind="write", key__startswith="large/").order_by("-key", "-index")[0]
    GraphValue.objects.filter(pk=last.pk).delete()

    stored = saver.get_tuple(config)
    assert stored is not None
    assert stored.pending_writes == [("whole", "notes", "small"), ("whole", "topic", "x")]
    saver.put_writes(config, large, "large")
    stored = saver.get_tuple(config)
    assert stored is not None
    assert len(stored.pending_writes or ()) == 4


@pytest.mark.parametrize("is_async", [False, True])
def test_a_graph_outside_of_a_run_has_a_thread(
    durable_site: DurableSite, saver_of: Callable[..., AgentopsSaver], *, is_async: bool
) -> None:
    saver = saver_of()
    graph = chat(saver)
    config: Any = {"configurable": {"thread_id": "chat/17 ü"}}

    async def execute() -> None:
        await graph.ainvoke({"notes": ["begun"]}, config)
        await graph.ainvoke(Command(resume="Ada"), config)
        await saver.aclose()

    if is_async:
        asyncio.run(execute())
    else:
        graph.invoke({"notes": ["begun"]}, config)
        graph.invoke(Command(resume="Ada"), config)

    assert graph.get_state(config).values == {"notes": ["begun", "Ada"]}
    assert [state.next for state in graph.get_state_history(config)] == [(), ("ask",), ("__start__",)]
    thread = GraphThread.objects.get(project=durable_site.site.project)
    assert (thread.name, GraphValue.objects.filter(thread=thread, kind="checkpoint").count()) == ("chat/17 ü", 3)
    other = saver_of()
    other.copy_thread("chat/17 ü", "copy")
    assert [row.metadata["step"] for row in other.list({"configurable": {"thread_id": "copy"}})] == [1, 0, -1]
    assert len(list(other.list(None, filter={"source": "loop"}))) == 4
    other.delete_thread("chat/17 ü")
    assert [thread.name for thread in GraphThread.objects.all()] == ["copy"]


def test_large_values_are_stored_in_pieces(durable_site: DurableSite, saver_of: Callable[..., AgentopsSaver]) -> None:
    text = base64.b64encode(bytes(number * 7919 % 251 for number in range(3_000_000))).decode()
    noise = JsonPlusSerializer().dumps_typed(text)[1]
    builder = StateGraph(State)
    builder.add_node("grow", lambda state: {"notes": [__import__("random").Random(7).randbytes(2_000_000).hex()]})
    builder.add_edge(START, "grow")
    graph = builder.compile(checkpointer=saver_of(), name="large")
    config: Any = {"configurable": {"thread_id": "large"}}

    graph.invoke({"notes": ["small"]}, config)

    assert len(noise) > 3_000_000
    assert len(graph.get_state(config).values["notes"][1]) == 4_000_000
    assert GraphValue.objects.filter(kind="channel", index=1).exists()


def test_states_are_sealed_by_a_codec(durable_site: DurableSite, saver_of: Callable[..., AgentopsSaver]) -> None:
    graph = chat(saver_of(codec=Reversed()))
    config: Any = {"configurable": {"thread_id": "sealed"}}
    graph.invoke({"notes": ["begun"]}, config)

    assert all(text.startswith("!reversed:") for text in GraphValue.objects.values_list("text", flat=True))
    assert graph.get_state(config).values == {"notes": ["begun"]}
    with pytest.raises(LookupError, match="stored with the codec 'reversed'"):
        chat(saver_of()).get_state(config)


def test_the_codec_of_serve_seals_the_state_of_runs(durable_site: DurableSite) -> None:
    builder = StateGraph(State)
    builder.add_node("note", lambda state: {"notes": ["noted"]})
    builder.add_edge(START, "note")
    graph = builder.compile(checkpointer=AgentopsSaver(), name="sealed")
    with durable_site.serving(durable_function(graph), codec=Reversed()):
        run = durable_site.completes(durable_site.start("sealed", '{"notes": ["a"]}'))

    texts = GraphValue.objects.filter(run=run).values_list("text", flat=True)
    assert len(texts) >= 3
    assert all(text.startswith("!reversed:") for text in texts)
    assert "noted" in run.result


def test_a_state_that_only_pickle_can_store_is_refused(
    durable_site: DurableSite, saver_of: Callable[..., AgentopsSaver]
) -> None:
    graph = chat(saver_of(serde=JsonPlusSerializer(pickle_fallback=True)))

    with pytest.raises(TypeError, match="only pickle can store"):
        graph.invoke({"notes": [Odd()]}, {"configurable": {"thread_id": "odd"}})


def test_a_state_that_the_site_refuses_pauses_the_run(durable_site: DurableSite) -> None:
    builder = StateGraph(State)
    builder.add_node("note", lambda state: {"notes": ["noted"]})
    builder.add_edge(START, "note")
    outer = StateGraph(State)
    # The namespace of a sub-graph begins with the name of its node.
    outer.add_node("n" * 300, builder.compile())
    outer.add_edge(START, "n" * 300)
    graph = outer.compile(checkpointer=AgentopsSaver(), name="refused")
    with durable_site.serving(durable_function(graph)):
        run = durable_site.start("refused", '{"notes": ["a"]}')
        durable_site.reaches(run, RunStatus.PAUSED)

    assert "300 characters" in run.error_message


def test_the_state_of_a_run_is_changed_only_by_the_run(
    durable_site: DurableSite, saver_of: Callable[..., AgentopsSaver]
) -> None:
    builder = StateGraph(State)
    builder.add_node("note", lambda state: {"notes": ["noted"]})
    builder.add_edge(START, "note")
    saver = saver_of()
    with durable_site.serving(durable_function(builder.compile(checkpointer=saver, name="kept"))):
        run = durable_site.completes(durable_site.start("kept", '{"notes": ["a"]}'))

    with pytest.raises(StateConflict, match="is a run"):
        saver.delete_thread(str(run.pk))
    with pytest.raises(StateConflict, match="is a run"):
        saver.prune([str(run.pk)])
    saver.copy_thread(str(run.pk), "copy")
    assert saver.get_tuple({"configurable": {"thread_id": "copy"}}) is not None


def test_graphs_without_a_name_or_with_another_saver_are_refused() -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    builder = StateGraph(MessagesState)
    builder.add_node("note", lambda state: state)
    builder.add_edge(START, "note")
    with pytest.raises(ValueError, match="has no name"):
        durable_function(builder.compile())
    with pytest.raises(TypeError, match="has the checkpointer InMemorySaver"):
        durable_function(builder.compile(checkpointer=InMemorySaver(), name="other"))
