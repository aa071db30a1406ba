"""Test that the buttons of a run's page act on runs that a process elsewhere executes: pause, resume, stop, and so on.

Each framework executes the same conversation: it looks up an order, refunds it after an approval, and answers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.tools import tool
from playwright.sync_api import Page, expect
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from agentops.accounts.models import Role
from agentops.durable import Answer, Call, DurableRun, Usage, durable
from agentops.durable.langgraph import AgentopsSaver
from agentops.durable.pydantic_ai import AgentopsDurability
from runs.models import AgentRun, Approval
from tests.support.browser import Tabs, live, open_run, status
from tests.support.clients import Site
from tests.support.durable import DurableSite, ServingThread
from tests.support.factories import make_person
from tests.support.langchain_models import ScriptedChat
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.browser]
FRAMEWORKS = ("plain", "pydantic_ai", "langgraph")
MESSAGE = "Use the other account."
#: The tokens of each model call.
TOKENS = 1_000
#: What the model requests, one after the other: the ID of the call, the tool, and its arguments.
CALLS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("c1", "look_up", {"order": 17}),
    ("c2", "refund", {"cents": 500}),
)


def said(people: list[str]) -> str:
    return f"Done. {' '.join(people)}"


@dataclass
class Desk:
    """The tools and the scripted model of the agent `desk`."""

    #: Set when looking up may end.
    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    refunds: list[int] = field(default_factory=list)

    async def look_up(self, order: int) -> str:
        await self.is_open.wait()
        return f"order {order} is late"

    async def refund(self, cents: int) -> str:
        self.refunds.append(cents)
        return f"{cents} cents refunded"

    def served(self, framework: str) -> Any:
        """Return the agent as `serve` accepts it."""
        return {"plain": self._plain, "pydantic_ai": self._pydantic_ai, "langgraph": self._langgraph}[framework]()

    def _plain(self) -> Any:
        async def ask_model(results: list[str], people: list[str]) -> Answer:
            if len(results) == len(CALLS):
                return Answer(text=said(people), usage=Usage(input_tokens=TOKENS))
            call_id, name, arguments = CALLS[len(results)]
            effect: Any = "read" if name == "look_up" else "once"
            call = Call(id=call_id, name=name, arguments=arguments, effect=effect, needs_approval=name == "refund")
            return Answer(calls=[call], usage=Usage(input_tokens=TOKENS))

        @durable("desk")
        async def desk(run: DurableRun, prompt: str) -> str:
            tools = {"look_up": self.look_up, "refund": self.refund}
            results: list[str] = []
            people: list[str] = []
            while (answer := await run.model("scripted", ask_model, results, people)).calls:
                results += [await run.tool(call, tools[call.name]) for call in answer.calls]
                people += await run.messages()
            return answer.text

        return desk

    def _pydantic_ai(self) -> Any:
        def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
            results = [part for part in parts if isinstance(part, ToolReturnPart)]
            people = [str(part.content) for part in parts if isinstance(part, UserPromptPart)][1:]
            part: TextPart | ToolCallPart = TextPart(said(people))
            if len(results) < len(CALLS):
                call_id, name, arguments = CALLS[len(results)]
                part = ToolCallPart(name, arguments, call_id)
            return ModelResponse([part], usage=RequestUsage(input_tokens=TOKENS))

        agent = Agent(FunctionModel(respond), name="desk", capabilities=[AgentopsDurability()])
        agent.tool_plain(metadata={"agentops": {"effect": "read"}})(self.look_up)
        agent.tool_plain(requires_approval=True)(self.refund)
        return agent

    def _langgraph(self) -> Any:
        def respond(messages: Sequence[BaseMessage]) -> AIMessage:
            results = [message for message in messages if isinstance(message, ToolMessage)]
            people = [str(message.content) for message in messages if isinstance(message, HumanMessage)][1:]
            usage = UsageMetadata(input_tokens=TOKENS, output_tokens=0, total_tokens=TOKENS)
            if len(results) == len(CALLS):
                return AIMessage(said(people), usage_metadata=usage)
            call_id, name, arguments = CALLS[len(results)]
            return AIMessage("", tool_calls=[{"id": call_id, "name": name, "args": arguments}], usage_metadata=usage)

        look_up = tool(description="Look up an order.", extras={"agentops": {"effect": "read"}})(self.look_up)
        refund = tool(description="Refund an amount.", extras={"agentops": {"approval": True}})(self.refund)
        model = ScriptedChat(script=respond)
        return create_agent(model, [look_up, refund], name="desk", checkpointer=AgentopsSaver())


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def site(web: WebThread) -> DurableSite:
    return DurableSite(Site(web))


@pytest.fixture(params=FRAMEWORKS)
def process(request: pytest.FixtureRequest, site: DurableSite, desk: Desk) -> Iterator[ServingThread]:
    with site.serving(desk.served(request.param)) as process:
        yield process


@pytest.fixture
def run(site: DurableSite, process: ServingThread) -> AgentRun:
    """A run that looks up."""
    run = site.start("desk", "Refund order 17.")
    site.at_step(run, "look_up")
    return run


@pytest.fixture
def page(tabs: Tabs, web: WebThread, run: AgentRun) -> Page:
    page = tabs.open(web.url, make_person(run.project, Role.ADMIN))
    open_run(page, run)
    live(page)
    status(page, "running")
    return page


def menu(page: Page, name: str) -> None:
    page.locator("#head .actions summary", has_text=name).click()


def approve(page: Page) -> None:
    """Approve the call that the run of the page waits for."""
    status(page, "waiting")
    page.get_by_role("button", name=re.compile("^Approve"), exact=False).first.click()


def test_a_run_is_paused_resumed_with_a_message_and_approved(
    page: Page, run: AgentRun, desk: Desk, process: ServingThread
) -> None:
    page.get_by_role("button", name="Pause", exact=True).click()
    process.call(desk.is_open.set)
    status(page, "paused")
    menu(page, "Resume")
    page.get_by_role("textbox", name="Message").locator("visible=true").fill(MESSAGE)
    page.get_by_role("button", name="Resume as a new run").click()
    expect(page).not_to_have_url(re.compile(str(run.pk)))
    approve(page)

    status(page, "completed")
    expect(page.locator("#timeline")).to_contain_text(said([MESSAGE]))
    assert desk.refunds == [500]


def test_a_run_is_stopped(page: Page, run: AgentRun, desk: Desk) -> None:
    menu(page, "Stop")
    page.get_by_role("button", name="Stop run").click()
    status(page, "stopped")

    assert desk.refunds == []


def test_a_run_is_forked(page: Page, run: AgentRun, desk: Desk, process: ServingThread) -> None:
    process.call(desk.is_open.set)
    approve(page)
    status(page, "completed")
    page.get_by_role("link", name="Fork…").click()
    page.get_by_label("Checkpoint").select_option("After step 1")
    page.get_by_role("button", name="Fork run").click()
    expect(page).not_to_have_url(re.compile(str(run.pk)))
    assert AgentRun.objects.get(forked_from=run).forked_at_step == 1
    approve(page)
    status(page, "completed")

    assert desk.refunds == [500, 500]
    assert Approval.objects.filter(state=Approval.State.APPROVED).count() == 2


def test_a_budget_of_the_project_pauses_a_run(page: Page, run: AgentRun, desk: Desk, process: ServingThread) -> None:
    page.goto(f"/p/{run.project.slug}/settings/budgets")
    page.get_by_label("Tokens per day").fill(str(TOKENS))
    page.get_by_role("button", name="Save budgets").click()
    open_run(page, run)
    process.call(desk.is_open.set)
    status(page, "paused")

    expect(page.locator(".banner").first).to_contain_text(re.compile("budget", re.IGNORECASE))
    assert desk.refunds == []
