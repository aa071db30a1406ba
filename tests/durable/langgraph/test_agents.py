"""Agents of LangChain as runs: model calls, tools, effects, approvals, messages, and repeated calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph.state import CompiledStateGraph

from agentops.client import Client
from agentops.durable.langgraph import AgentopsSaver, durable_function
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, GraphValue, TurnUsage
from runs.statuses import RunStatus
from tests.support.durable import DurableSite, steps_of
from tests.support.langchain_models import ScriptedChat, StreamingChat, answer
from tests.support.timing import eventually
from timeline.models import Event

WAITING, PAUSED = RunStatus.WAITING, RunStatus.PAUSED


class Desk:
    """An agent with two tools, and their calls."""

    def __init__(self, script: Callable[[Sequence[BaseMessage]], AIMessage] | None = None, **options: Any) -> None:
        self.done: list[Any] = []
        self.model = ScriptedChat(script=script or self.script)
        self.problem: Exception | None = None
        agent: CompiledStateGraph[Any] = create_agent(
            self.model, self.tools(), name="desk", checkpointer=AgentopsSaver(), **options
        )
        self.function = durable_function(agent)

    @staticmethod
    def script(messages: Sequence[BaseMessage]) -> AIMessage:
        if not any(message.type == "tool" for message in messages):
            return answer("I look.", ("look_up", {"order": 17}, "c1"), ("refund", {"cents": 500}, "c2"))
        texts = sorted(str(message.text) for message in messages if message.type == "tool")
        return answer(f"Done: {', '.join(texts)}")

    def tools(self) -> list[BaseTool]:
        @tool(extras={"agentops": {"effect": "read"}})
        def look_up(order: int) -> str:
            """Look up an order."""
            self.done.append(order)
            return f"order {order} is late"

        @tool
        async def refund(cents: int) -> str:
            """Refund an amount."""
            if self.problem is not None:
                problem, self.problem = self.problem, None
                raise problem
            self.done.append(cents)
            return f"{cents} refunded"

        return [look_up, refund]


def test_an_agent_has_steps_messages_and_tools(durable_site: DurableSite) -> None:
    desk = Desk()
    with durable_site.serving(desk.function):
        run = durable_site.completes(durable_site.start("desk", "Where is order 17?"))

    assert run.result == "Done: 500 refunded, order 17 is late"
    assert sorted(desk.done) == [17, 500]
    assert [len(request) for request in desk.model.requests] == [1, 4]
    names = ["claude-sonnet-4-5", "claude-sonnet-4-5", "look_up", "messages", "refund"]
    assert sorted(name for _, name, _ in steps_of(run)) == names
    calls = {call.tool_name: call for call in AgentRunToolCall.objects.filter(run=run)}
    assert {name: (call.effect, call.output, call.call_id) for name, call in calls.items()} == {
        "look_up": ("read", "order 17 is late", "c1"),
        "refund": ("at_most_once", "500 refunded", "c2"),
    }
    messages = AgentRunMessage.objects.filter(run=run, role="assistant").order_by("position")
    assert [message.model for message in messages] == ["claude-sonnet-4-5"] * 2
    usage = list(TurnUsage.objects.filter(run=run).order_by("step_number"))
    assert [(row.input_tokens, row.cache_read_tokens, row.output_tokens) for row in usage] == [(100, 40, 20)] * 2
    assert all(row.cost_usd for row in usage)
    assert run.step_count == 2
    assert GraphValue.objects.filter(run=run, kind="checkpoint").count() == 5


def test_a_person_approves_edits_and_rejects_the_calls_of_the_middleware(
    durable_site: DurableSite, person: Client
) -> None:
    def script(messages: Sequence[BaseMessage]) -> AIMessage:
        if messages[-1].type == "human":
            return answer("", *(("refund", {"cents": cents}, f"c{cents}") for cents in (100, 200, 300)))
        texts = [str(message.text) for message in messages if message.type == "tool"]
        return answer(" / ".join(sorted(texts)))

    desk = Desk(script, middleware=[HumanInTheLoopMiddleware(interrupt_on={"refund": True})])
    decisions: list[Callable[[Any, Any], Any]] = [
        person.approve,
        lambda run, call: person.approve(run, call, arguments={"cents": 250}),
        lambda run, call: person.deny(run, call, "too much"),
    ]
    with durable_site.serving(desk.function):
        run = durable_site.start("desk")
        for decide in decisions:
            durable_site.reaches(run, WAITING, reason="approval")
            [approval] = person.approvals(run_id=str(run.pk), state="pending")
            assert (approval.tool_name, list(approval.arguments)) == ("refund", ["cents"])
            decide(run.pk, approval.call_id)
            durable_site.is_decided(approval.call_id)
        durable_site.completes(run)

    assert sorted(desk.done) == [100, 250]
    assert all(text in run.result for text in ("100 refunded", "250 refunded", "too much"))
    assert len(desk.model.requests) == 2


def test_approval_rules_apply_to_tools_and_the_model_gets_a_denial(durable_site: DurableSite, person: Client) -> None:
    desk = Desk()
    with durable_site.serving(desk.function):
        durable_site.set_rules("desk", {"tools": "refund", "action": "ask"})
        run = durable_site.start("desk")
        durable_site.reaches(run, WAITING, reason="approval")
        [approval] = person.approvals(run_id=str(run.pk), state="pending")
        person.deny(run.pk, approval.call_id, "not today")
        durable_site.completes(run)

    assert desk.done == [17]
    assert "not today" in run.result
    assert len(desk.model.requests) == 2


def test_a_failed_tool_pauses_the_run_and_only_it_runs_again(durable_site: DurableSite, person: Client) -> None:
    desk = Desk()
    desk.problem = ConnectionError("the bank is closed")
    with durable_site.serving(desk.function):
        run = durable_site.start("desk")
        durable_site.reaches(run, PAUSED)
        assert (run.error_type, "bank is closed" in run.error_message) == ("ConnectionError", True)
        person.resume(run.pk, "Try again, please.")
        run.refresh_from_db()
        resumed = durable_site.completes(run.resumed_as)

    assert resumed.result == "Done: 500 refunded, order 17 is late"
    assert sorted(desk.done) == [17, 500]
    assert [message.text for message in desk.model.requests[-1]][-1] == "Try again, please."
    assert len(desk.model.requests) == 2


def test_messages_reach_the_next_request_and_all_later_ones(durable_site: DurableSite, person: Client) -> None:
    sent: list[Any] = []

    def script(messages: Sequence[BaseMessage]) -> AIMessage:
        tools = [message for message in messages if message.type == "tool"]
        if len(tools) == 0:
            eventually(lambda: run_id, why="the run was created")
            person.send(run_id[0], "Hurry up.")
            return answer("", ("look_up", {"order": 1}, "c1"))
        sent.append([str(message.text) for message in messages if message.type == "human"])
        return answer("", ("look_up", {"order": 2}, "c2")) if len(tools) == 1 else answer("Done.")

    desk, run_id = Desk(script), []
    with durable_site.serving(desk.function):
        run = durable_site.start("desk")
        run_id.append(run.pk)
        durable_site.completes(run)

    assert sent == [["Go.", "Hurry up."], ["Go.", "Hurry up."]]
    assert AgentRunMessage.objects.filter(run=run, role="user").count() == 2


def test_a_completed_run_is_continued_as_the_same_thread(durable_site: DurableSite, person: Client) -> None:
    desk = Desk(lambda messages: answer(f"answer to {messages[-1].text} after {len(messages)}"))
    with durable_site.serving(desk.function):
        run = durable_site.completes(durable_site.start("desk", "one"))
        assert run.step_count == 1
        continued = AgentRun.objects.get(pk=person.fork(run.pk, 1, "two").id)
        durable_site.completes(continued)

    assert (run.result, continued.result) == ("answer to one after 1", "answer to two after 3")


def test_a_fork_begins_with_the_state_after_its_step(durable_site: DurableSite, person: Client) -> None:
    desk = Desk()
    with durable_site.serving(desk.function):
        run = durable_site.completes(durable_site.start("desk"))
        fork = AgentRun.objects.get(pk=person.fork(run.pk, 1, "Be brief.").id)
        durable_site.completes(fork)

    assert sorted(desk.done) == [17, 500]
    assert len(desk.model.requests) == 3
    assert [str(message.text) for message in desk.model.requests[-1]][-1] == "Be brief."
    assert fork.result == run.result


def test_a_model_that_fails_pauses_the_run(durable_site: DurableSite, person: Client) -> None:
    failures = [TimeoutError("no answer")]

    def script(messages: Sequence[BaseMessage]) -> AIMessage:
        if failures:
            raise failures.pop()
        return answer("Hello.")

    desk = Desk(script)
    with durable_site.serving(desk.function):
        run = durable_site.start("desk")
        durable_site.reaches(run, PAUSED)
        assert run.error_type == "TimeoutError"
        resumed = AgentRun.objects.get(pk=person.resume(run.pk).id)
        durable_site.completes(resumed)

    assert resumed.result == "Hello."


def test_a_cut_answer_pauses_and_a_message_continues_it(durable_site: DurableSite, person: Client) -> None:
    def script(messages: Sequence[BaseMessage]) -> AIMessage:
        if len(messages) > 1:
            return answer("high at noon.")
        cut = answer("The tide is")
        cut.response_metadata["stop_reason"] = "max_tokens"
        return cut

    with durable_site.serving(Desk(script).function):
        run = durable_site.reaches(durable_site.start("desk"), PAUSED, reason="answer_cut")
        person.resume(run.pk, "Go on.")
        run.refresh_from_db()
        successor = durable_site.completes(run.resumed_as)

    assert (run.result, successor.result) == ("", "high at noon.")


def test_budgets_are_checked_before_a_model_is_called(durable_site: DurableSite) -> None:
    desk = Desk()
    agent = durable_function(create_agent(desk.model, desk.tools(), name="desk"), settings={"budgets": {"tokens": 50}})
    with durable_site.serving(agent):
        run = durable_site.start("desk")
        durable_site.reaches(run, PAUSED, reason="budget")

    assert len(desk.model.requests) == 1
    assert sorted(desk.done) == [17, 500]


def test_a_run_is_paused_and_stopped_in_a_tool(durable_site: DurableSite, person: Client) -> None:
    entered, finish = threading.Event(), threading.Event()

    @tool
    def slow() -> str:
        """Take long."""
        entered.set()
        finish.wait(60)
        return "slow"

    def script(messages: Sequence[BaseMessage]) -> AIMessage:
        return answer("Done.") if messages[-1].type == "tool" else answer("", ("slow", {}, "c1"))

    model = ScriptedChat(script=script)
    with durable_site.serving(durable_function(create_agent(model, [slow], name="slow"))):
        run = durable_site.start("slow")
        assert entered.wait(60)
        person.pause(run.pk)
        finish.set()
        durable_site.reaches(run, PAUSED, reason="operator")
        assert len(model.requests) == 1
        resumed = AgentRun.objects.get(pk=person.resume(run.pk).id)
        durable_site.completes(resumed)
        assert (len(model.requests), AgentRunToolCall.objects.filter(tool_name="slow").count()) == (2, 1)
        entered.clear()
        other = durable_site.start("slow")
        finish.clear()
        assert entered.wait(60)
        person.stop(other.pk)
        finish.set()
        durable_site.reaches(other, RunStatus.STOPPED)


def test_text_is_streamed_to_the_page(durable_site: DurableSite) -> None:
    model = StreamingChat(script=lambda messages: answer("one two three"), streaming=True)
    streaming = create_agent(model, [], name="writer")
    with durable_site.serving(durable_function(streaming)):
        run = durable_site.completes(durable_site.start("writer"))

    assert run.result == "one two three"
    deltas = Event.objects.filter(log_id=run.pk, type="llm.text.delta").order_by("seq")
    assert "".join(event.payload["text"] for event in deltas) == "one two three"


def test_a_model_repeats_call_ids(durable_site: DurableSite) -> None:
    def script(messages: Sequence[BaseMessage]) -> AIMessage:
        count = sum(message.type == "tool" for message in messages)
        return answer("", ("look_up", {"order": count}, "same")) if count < 2 else answer("Done.")

    desk = Desk(script)
    with durable_site.serving(desk.function):
        run = durable_site.completes(durable_site.start("desk"))

    assert desk.done == [0, 1]
    assert AgentRunToolCall.objects.filter(run=run).values("call_id").distinct().count() == 2


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"effect": "twice"}, "tool 'odd' has the effect 'twice'"),
        ({"step": False, "approval": True}, 'tool \'odd\' has "approval" and "step": False'),
    ],
)
def test_tools_with_invalid_rules_are_refused(rule: dict[str, Any], problem: str) -> None:
    @tool(extras={"agentops": rule})
    def odd() -> str:
        """Do something."""
        return ""

    with pytest.raises(ValueError, match=problem):
        durable_function(create_agent(ScriptedChat(script=None), [odd], name="odd"))
