"""Runs that wait for people, that are paused, stopped, resumed and forked, and whose process dies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, PermissionResultAllow, PermissionResultDeny

from agentops.client import Client
from agentops.durable.claude import durable_function
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.claude_model import call
from tests.support.claude_rig import BASH, ClaudeRig, Shop
from tests.support.durable import DurableSite, steps_of
from tests.support.timing import eventually

PAUSED, STOPPED, WAITING = RunStatus.PAUSED, RunStatus.STOPPED, RunStatus.WAITING


@pytest.fixture
def person(durable_site: DurableSite) -> Iterator[Client]:
    with Client(durable_site.site.url, durable_site.site.key("read", "write")) as client:
        yield client


def approve(person: Client, run: AgentRun, tool_name: str, **arguments: Any) -> None:
    [approval] = person.approvals(run_id=str(run.pk), kind="approval", state="pending")
    assert approval.tool_name == tool_name
    person.approve(run.pk, approval.call_id, **arguments)


def test_calls_wait_for_approvals_without_a_process(durable_site: DurableSite, rig: ClaudeRig, person: Client) -> None:
    shop = Shop()
    model = rig.model([call("toolu_1", "mcp__shop__charge", cents=500), BASH], "Both done.")
    function = durable_function(rig.options(model, mcp_servers={"shop": shop.server}), name="shop")

    with durable_site.serving(function):
        run = durable_site.reaches(durable_site.start("shop", "Go."), WAITING, reason="approval")
        assert (shop.calls, len(model.requests)) == ([], 1)
        approve(person, run, "mcp__shop__charge")
        eventually(lambda: shop.calls, why="the tool was executed")
        durable_site.reaches(run, WAITING, reason="approval")
    # Another process executes the call of the program's own tool, and continues the conversation.
    with durable_site.serving(function):
        approve(person, run, "Bash")
        durable_site.completes(run)

    assert (run.result, shop.calls, len(model.requests)) == ("Both done.", [("charge", {"cents": 500})], 2)
    assert model.conversation[2] == ("user", ["=charged 500", "=from the shell", "Continue from where you left off."])


def test_a_denied_call_and_changed_arguments(durable_site: DurableSite, rig: ClaudeRig, person: Client) -> None:
    shop = Shop()
    model = rig.model(
        [call("toolu_1", "mcp__shop__charge", cents=500)], [call("toolu_2", "mcp__shop__charge", cents=900)], "Done."
    )
    function = durable_function(rig.options(model, mcp_servers={"shop": shop.server}), name="shop")

    with durable_site.serving(function):
        run = durable_site.reaches(durable_site.start("shop", "Go."), WAITING, reason="approval")
        [approval] = person.approvals(run_id=str(run.pk), kind="approval", state="pending")
        person.deny(run.pk, approval.call_id, message="Too early.")
        eventually(lambda: len(model.requests) == 2, why="the model was told")
        durable_site.reaches(run, WAITING, reason="approval")
        approve(person, run, "mcp__shop__charge", arguments={"cents": 300})
        durable_site.completes(run)

    assert shop.calls == [("charge", {"cents": 300})]
    results = [parts[0] for role, parts in model.conversation if role == "user"]
    assert "Too early." in results[1]
    assert results[2] == "=charged 300"


def test_a_question_of_the_model_is_a_question_of_the_run(
    durable_site: DurableSite, rig: ClaudeRig, person: Client
) -> None:
    options = [{"label": "EUR", "description": "Euro"}, {"label": "CHF", "description": "Franc"}]
    question = {"question": "Which currency?", "header": "Currency", "options": options, "multiSelect": False}
    model = rig.model([call("toolu_1", "AskUserQuestion", questions=[question])], "Francs it is.")

    with durable_site.serving(durable_function(rig.options(model), name="asker")):
        run = durable_site.reaches(durable_site.start("asker", "Go."), WAITING, reason="input")
        assert [one.run_id for one in person.approvals(kind="question", state="pending")] == [run.pk]
        person.reply(run.pk, "CHF")
        durable_site.completes(run)

    assert run.result == "Francs it is."
    assert model.conversation[2][1][0] == "=The answers of the user:\nWhich currency?\nCHF"


def test_own_hooks_and_can_use_tool_decide_first(durable_site: DurableSite, rig: ClaudeRig) -> None:
    shop = Shop()
    seen: list[tuple[str, str]] = []

    async def guard(facts: Any, call_id: str | None, _: Any) -> Any:
        seen.append(("before", facts["tool_name"]))
        reason = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": "No shell."}
        return {"hookSpecificOutput": reason} if facts["tool_name"] == "Bash" else {}

    async def after(facts: Any, call_id: str | None, _: Any) -> Any:
        seen.append(("after", facts["tool_name"]))
        return {}

    async def decide(name: str, arguments: dict[str, Any], _: Any) -> Any:
        seen.append(("decide", name))
        if arguments["cents"] > 500:
            return PermissionResultDeny(message="Too much.")
        return PermissionResultAllow(updated_input={"cents": arguments["cents"] + 1})

    model = rig.model(
        [BASH],
        [call("toolu_3", "mcp__shop__charge", cents=900)],
        [call("toolu_4", "mcp__shop__charge", cents=500)],
        "Done.",
    )
    options = rig.options(
        model,
        mcp_servers={"shop": shop.server},
        can_use_tool=decide,
        hooks={"PreToolUse": [HookMatcher(hooks=[guard])], "PostToolUse": [HookMatcher(hooks=[after])]},
    )

    with durable_site.serving(durable_function(options, name="shop")):
        run = durable_site.completes(durable_site.start("shop", "Go."))

    assert (run.result, shop.calls) == ("Done.", [("charge", {"cents": 501})])
    charge = "mcp__shop__charge"
    assert seen == [
        ("before", "Bash"),
        ("before", charge),
        ("decide", charge),
        ("before", charge),
        ("decide", charge),
        ("after", charge),
    ]
    results = [parts[0] for role, parts in model.conversation if role == "user"]
    assert ["No shell." in results[1], "Too much." in results[2], results[3]] == [True, True, "=charged 501"]


def test_a_message_reaches_the_model_within_the_turn_and_starts_another_one(
    durable_site: DurableSite, rig: ClaudeRig, person: Client
) -> None:
    shop = Shop()
    model = rig.model([call("toolu_1", "mcp__shop__price", item="tea")], "First.", "Second.", held=0)
    options = rig.options(model, mcp_servers={"shop": shop.server}, allowed_tools=["mcp__shop"])

    with durable_site.serving(durable_function(options, name="shop")):
        run = durable_site.start("shop", "Go.")
        eventually(lambda: model.requests, why="the model was called")
        person.send(run.pk, "Hurry up.")
        model.held = 1
        model.release.set()
        model.release.clear()
        eventually(lambda: len(model.requests) == 2, why="the model got the message")
        assert "Hurry up." in str(model.requests[1]["messages"])
        person.send(run.pk, "And now?")
        model.release.set()
        durable_site.completes(run)

    assert run.result == "Second."
    assert model.conversation[-1] == ("user", ["And now?"])


def test_a_paused_run_continues_with_a_message_in_another_process(
    durable_site: DurableSite, rig: ClaudeRig, person: Client
) -> None:
    shop = Shop()
    model = rig.model([call("toolu_1", "mcp__shop__charge", cents=5)], "Done.", held=1)
    options = rig.options(model, mcp_servers={"shop": shop.server}, allowed_tools=["mcp__shop"])
    function = durable_function(options, name="shop")

    with durable_site.serving(function, grace_s=0.2):
        run = durable_site.start("shop", "Go.")
        eventually(lambda: len(model.requests) == 2, why="the model was called again")
        person.pause(run.pk)
        durable_site.reaches(run, PAUSED, reason="operator")
    model.release.set()
    with durable_site.serving(function):
        person.resume(run.pk, message="Be brief.")
        run.refresh_from_db()
        successor = durable_site.completes(run.resumed_as)

    assert (successor.result, shop.calls) == ("Done.", [("charge", {"cents": 5})])
    assert model.conversation[1:] == [
        ("assistant", ['mcp__shop__charge({"cents": 5})']),
        ("user", ["=charged 5", "Be brief."]),
    ]


def test_a_stop_ends_the_program(durable_site: DurableSite, rig: ClaudeRig, person: Client) -> None:
    model = rig.model("Never read.", held=0)

    with durable_site.serving(durable_function(rig.options(model), name="slow")):
        run = durable_site.start("slow")
        eventually(lambda: model.requests, why="the model was called")
        person.stop(run.pk)
        durable_site.reaches(run, STOPPED)
    model.release.set()

    assert [state for _, _, state in steps_of(run)] != ["done"]


def test_a_fork_continues_a_copy_of_the_session(durable_site: DurableSite, rig: ClaudeRig, person: Client) -> None:
    shop = Shop()
    model = rig.model([call("toolu_1", "mcp__shop__charge", cents=5)], "Done.", "Forked.")
    options = rig.options(model, mcp_servers={"shop": shop.server}, allowed_tools=["mcp__shop"])

    with durable_site.serving(durable_function(options, name="shop")):
        run = durable_site.completes(durable_site.start("shop", "Go."))
        fork = AgentRun.objects.get(pk=person.fork(run.pk, 2, "Once more?").id)
        durable_site.completes(fork)
        assert model.conversation[-2:] == [("assistant", ["Done."]), ("user", ["Once more?"])]
        early = AgentRun.objects.get(pk=person.fork(run.pk, 1, "Something else?").id)
        durable_site.completes(early)

    assert model.conversation[1:] == [
        ("assistant", ['mcp__shop__charge({"cents": 5})']),
        ("user", ["=charged 5", "Something else?"]),
    ]
    assert (fork.result, early.result, shop.calls) == ("Forked.", "Done.", [("charge", {"cents": 5})])


def test_a_budget_stops_the_run_before_the_next_answer(durable_site: DurableSite, rig: ClaudeRig) -> None:
    shop = Shop()
    model = rig.model(*([call(f"toolu_{n}", "mcp__shop__price", item="tea")] for n in range(5)))
    options = rig.options(model, mcp_servers={"shop": shop.server}, allowed_tools=["mcp__shop"])

    with durable_site.serving(durable_function(options, name="shop", settings={"budgets": {"tokens": 40}})):
        run = durable_site.reaches(durable_site.start("shop", "Go."), PAUSED)

    assert run.status_reason.startswith("budget")
    assert len(model.requests) == 2


def test_an_error_of_the_model_pauses_the_run_and_a_resume_asks_again(
    durable_site: DurableSite, rig: ClaudeRig, person: Client
) -> None:
    shop = Shop()
    model = rig.model([call("toolu_1", "mcp__shop__charge", cents=5)], "Done.", refusals={1: 400})
    options = rig.options(model, mcp_servers={"shop": shop.server}, allowed_tools=["mcp__shop"])

    with durable_site.serving(durable_function(options, name="shop")):
        run = durable_site.reaches(durable_site.start("shop", "Go."), PAUSED)
        assert "refused by the script" in run.error_message
        model.refusals.clear()
        person.resume(run.pk)
        run.refresh_from_db()
        successor = durable_site.completes(run.resumed_as)

    assert (successor.result, shop.calls) == ("Done.", [("charge", {"cents": 5})])


def test_options_that_the_run_sets_are_refused() -> None:
    with pytest.raises(ValueError, match="leave out resume"):
        durable_function(ClaudeAgentOptions(resume="x"), name="shop")
