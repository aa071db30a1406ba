"""Kill the workers of an agent with four kinds of tools ten times, and approve calls in a browser.

The run ends as an undisturbed one does. Its models are on a third-party server, used through the vendors' libraries.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from agentops.accounts.models import Project, Role
from runs.actions import approvals
from runs.lifecycle import creation
from runs.lifecycle.approval_decisions import Decision
from runs.models import Agent, AgentRun, AgentRunMessage, AgentRunToolCall, Approval
from runs.statuses import RunStatus, ToolStatus, WaitReason
from tests.support import scripted_model
from tests.support.browser import Tabs, open_run
from tests.support.child_processes import ChildProcess
from tests.support.databases import reconnect
from tests.support.factories import make_person
from tests.support.loopback_servers import MockModelServer, SentRequest, assert_prefixes
from tests.support.recorded_vendor import THINKING_MODELS as MODELS
from tests.support.run_checks import check, events, transcript
from tests.support.stage import Effect, Stage
from tests.support.suite_fixtures import MakeWeb
from tests.support.timing import eventually
from timeline.models import Log

assert scripted_model.ScriptedProvider is not None
pytestmark = [pytest.mark.browser]
KILLS = 10
#: Number of events before the kill of a worker, and delay in seconds after the last of them.
EVENTS, LAST_S = (1, 12), 0.2
TOOLS = {"read": "ledger_read", "idempotent": "ledger_idempotent", "once": "ledger_once", "approved": "ledger_approved"}
#: The tool calls of each answer. The final answer follows.
TURNS = [
    "read idempotent",
    "once",
    "approved",
    "read read",
    "idempotent once",
    "approved",
    "read",
    "once idempotent",
    "approved read",
    "idempotent",
    "once",
    "read idempotent",
]
#: Modules loaded once for all workers, because loading takes seconds.
ADAPTERS = {"anthropic": "pydantic_ai.models.anthropic", "responses": "pydantic_ai.models.openai"}
#: Kinds of tools whose effect must not be repeated.
ONCE = ("once", "approved")
#: Fields that the server, the vendor's library or the product generates for each answer.
MADE_UP = {"timestamp", "id", "run_id", "provider_response_id", "signature", "encrypted_content"}
Json = dict[str, Any]


def turns(**connection: int) -> list[Json]:
    """Return the answers of the model. `connection` slows them down."""
    answers: list[Json] = []
    for number, names in enumerate(TURNS, start=1):
        calls = [
            {"id": f"call_{number}_{place}_{kind}", "name": TOOLS[kind], "arguments": f'{{"n": {number * 10 + place}}}'}
            for place, kind in enumerate(names.split())
        ]
        thought = {"reasoning": f"Turn {number} of {len(TURNS)}: what is next? 🤔"} if number % 3 == 1 else {}
        answers.append({**thought, "content": f"Turn {number}, naïvely.", "toolCalls": calls, **connection})
    return [*answers, {"content": "All twelve are done.", **connection}]


def start(stage: Stage, prompt: str, model: str, *, tool_sleep_s: float) -> AgentRun:
    reconnect()
    project, _ = Project.objects.get_or_create(slug="killed", defaults={"name": "Killed"})
    agent = Agent.objects.create(
        project=project,
        slug=f"agent-{Agent.objects.count()}",
        provider="llm",
        model=model,
        instructions="Use the tools. 🧰",
        tools=list(TOOLS.values()),
        settings={"ledger": str(stage.ledger), "tool_sleep_s": tool_sleep_s},
    )
    return creation.create(project, agent, prompt, by="test")


class Operator:
    """An operator on the page of a run, who checks the ledger before resolving an unknown outcome."""

    def __init__(self, page: Page, stage: Stage) -> None:
        self._page, self._stage = page, stage
        self.approvals = self.outcomes = 0

    def act(self, run: AgentRun) -> None:
        """Resolve the approval or outcome that the run waits for."""
        open_run(self._page, run)
        if run.status_reason == WaitReason.APPROVAL:
            place = self._page.locator(f"#approval-{Approval.objects.get(run=run, state='pending').pk}")
            place.get_by_role("button", name="Approve call").click()
            self.approvals += 1
        else:
            call = AgentRunToolCall.objects.get(run=run, status=ToolStatus.UNKNOWN, result_message=None)
            place = self._page.locator(f"#outcome-{call.pk}")
            self._resolve(place, call)
            self.outcomes += 1
        expect(place).to_have_count(0)

    def _resolve(self, place: Locator, call: AgentRunToolCall) -> None:
        if effects(self._stage, call):
            place.get_by_text("Mark as done…").click()
            place.get_by_label("Output").fill(f"did {call.input['n']}")
            place.get_by_role("button", name="Mark as done", exact=True).click()
        else:
            place.get_by_text("Run again…").click()
            place.get_by_role("button", name="Run again anyway").click()


def effects(stage: Stage, call: AgentRunToolCall) -> list[Effect]:
    """Return the effects of a call."""
    return [effect for effect in stage.effects(call.call_id) if effect.run == str(call.run_id)]


def undisturbed(stage: Stage, models: MockModelServer, protocol: str) -> tuple[Json, list[SentRequest]]:
    """Play a run without kills, and return its transcript and the requests to its model."""
    prompt = f"Undisturbed over {protocol}"
    models.script(prompt, *turns())
    worker = stage.worker(**models.environment)
    run = start(stage, prompt, MODELS[protocol], tool_sleep_s=0)
    while stage.reaches(run, RunStatus.WAITING, RunStatus.COMPLETED).state is RunStatus.WAITING:
        approvals.decide(
            "user:oscar", run, Approval.objects.get(run=run, state="pending").call_id, Decision(approves=True)
        )
    worker.end()
    return without_made_up(transcript(run)), models.sent(prompt)


def without_made_up(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_made_up(each) for name, each in value.items() if name not in MADE_UP}
    return [without_made_up(each) for each in value] if isinstance(value, list | tuple) else value


def kill_ten_times(stage: Stage, run: AgentRun, operator: Operator, draw: random.Random, env: dict[str, str]) -> None:
    """Kill the worker that holds the run ten times, shortly after a random event, and start another one each time."""
    workers = [stage.worker(**env), stage.worker(**env)]
    for _ in range(KILLS):
        last_seq, pause_s = seq_of(run) + draw.randint(*EVENTS), draw.uniform(0, LAST_S)
        holder = None
        while holder is None:
            while has_to_act(run, stage, partial(is_worked_on, run, last_seq)):
                operator.act(run)
            time.sleep(pause_s)
            holder = holder_of(run, workers)
        workers.remove(holder)
        holder.signal(stage.KILL)
        holder.killed()
        workers.append(stage.worker(**env))


def seq_of(run: AgentRun) -> int:
    return Log.objects.get(pk=run.pk).last_seq


def is_worked_on(run: AgentRun, last_seq: int) -> bool:
    """Return whether a worker holds the run and its log has reached this event. The run must not have ended."""
    assert not run.state.terminal, f"{run.status} before {KILLS} deaths: {run.error_message}"
    return run.state is RunStatus.RUNNING and seq_of(run) >= last_seq


def holder_of(run: AgentRun, workers: list[ChildProcess]) -> ChildProcess | None:
    """Return the living worker that holds the run."""
    run.refresh_from_db()
    is_held = run.state is RunStatus.RUNNING
    return next((each for each in workers if is_held and f":{each.pid}:" in run.lease_owner), None)


def has_to_act(run: AgentRun, stage: Stage, is_due: Callable[[], bool]) -> bool:
    """Wait until `is_due` holds or the run waits for an operator. Return True for the latter."""

    def has_come() -> bool:
        run.refresh_from_db()
        return waits_for_somebody(run) or is_due()

    def where() -> str:
        return f"{run.status} ({run.status_reason}) {run.error_message}\n{stage.workers[-1].said()}"

    eventually(has_come, within_s=90, why=where)
    return waits_for_somebody(run)


def waits_for_somebody(run: AgentRun) -> bool:
    return run.state is RunStatus.WAITING and run.status_reason in (WaitReason.APPROVAL, WaitReason.UNKNOWN_TOOL)


FIRST, *OTHERS = ADAPTERS


@pytest.mark.parametrize("protocol", [FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_a_run_survives_ten_kills_unchanged(
    protocol: str, stage: Stage, mock_model_server: MockModelServer, tabs: Tabs, web_process: MakeWeb
) -> None:
    seed = int(os.environ.get("KILL_SEED") or 1)
    print(f"KILL_SEED={seed}")
    stage.fork_server.ask(load=ADAPTERS[protocol])
    expected, expected_requests = undisturbed(stage, mock_model_server, protocol)
    prompt = f"Killed over {protocol}"
    mock_model_server.script(prompt, *turns(latency=15, chunkSize=12))
    run = start(stage, prompt, MODELS[protocol], tool_sleep_s=0.25)
    operator = Operator(tabs.open(web_process().url, make_person(run.project, Role.OPERATOR)), stage)
    kill_ten_times(stage, run, operator, random.Random(seed), mock_model_server.environment)
    while has_to_act(run, stage, lambda: run.state.terminal):
        operator.act(run)

    print(f"{operator.outcomes} unknown outcomes resolved")
    assert run.status == RunStatus.COMPLETED, run.error_message
    assert operator.approvals == 3
    assert_same_transcript(expected, without_made_up(transcript(run)), prompt)
    assert_no_turn_lost_or_repeated(run, mock_model_server, prompt, len(expected_requests))
    assert_effects(stage, run)
    check(run)


def assert_same_transcript(expected: Json, actual: Json, prompt: str) -> None:
    first = json.loads(json.dumps(expected).replace("Undisturbed", "Killed"))
    assert json.loads(json.dumps(actual)) == first
    assert prompt in json.dumps(actual)


def assert_no_turn_lost_or_repeated(run: AgentRun, models: MockModelServer, prompt: str, turn_count: int) -> None:
    """Check that each request extends the previous one, and that no committed answer is requested again."""
    sent = models.sent(prompt)
    assert_prefixes(sent)
    assert len(models.journal(prompt)) == len(sent)
    bodies = list(dict.fromkeys(request.body for request in sent))
    answers = AgentRunMessage.objects.filter(run=run, role="assistant").order_by("position")
    assert len(bodies) == len(answers) == turn_count
    abandoned = [event.step for event in events(run) if event.type == "llm.turn.abandoned"]
    for body, answer in zip(bodies, answers, strict=True):
        times = [request.at for request in sent if request.body == body]
        assert max(times) < answer.created_at.timestamp(), "asked again for an answer that was committed"
        assert len(times) <= 1 + abandoned.count(answer.step_number), "asked again without a reason"
    assert [len(before) < len(after) for before, after in pairwise(bodies)] == [True] * (turn_count - 1)


def assert_effects(stage: Stage, run: AgentRun) -> None:
    """Check that each call had an effect under one key, and that calls that must not be repeated had exactly one."""
    for call in AgentRunToolCall.objects.filter(run=run):
        found = effects(stage, call)
        assert len({effect.key for effect in found}) == 1, call.call_id
        assert len(found) == 1 or not call.call_id.endswith(ONCE), call.call_id
