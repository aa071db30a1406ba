"""Verdicts of several hooks become one decision: in any order, and with hooks that fail in every way."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pytest_django import Settings

from agentops.base.http import deadline
from agentops.base.patterns import Pattern
from runs.hooks.base import Hook, HookContext, HookEvent, Verdict, VerdictKind
from runs.hooks.deciding import ActiveHook, decide_call, decide_turn
from tests.support.timing import eventually

Decide = Callable[[HookContext], Any]
ARGUMENTS = {"path": "a.txt"}


def hook(decide: Decide, *, guard: bool = True, name: str = "h", event: HookEvent = HookEvent.PRE_TOOL_USE) -> Hook:
    methods = {"name": name, "guard": guard, "events": frozenset({event}), "decide": lambda _, context: decide(context)}
    made: Hook = type("OfTest", (Hook,), methods)({})
    return made


def call_with(*hooks: Hook, arguments: Mapping[str, Any] | str = ARGUMENTS) -> Any:
    context = HookContext(
        event=HookEvent.PRE_TOOL_USE, run_id="r", agent_id="a", step=1, tool_name="write_file", arguments=arguments
    )
    return decide_call([ActiveHook(each) for each in hooks], context)


def turn_with(*hooks: Hook, event: HookEvent = HookEvent.TURN_START) -> Any:
    return decide_turn([ActiveHook(each) for each in hooks], HookContext(event=event, run_id="r", agent_id="a", step=1))


def never(_: HookContext) -> None:
    threading.Event().wait()


def raises(_: HookContext) -> None:
    raise RuntimeError("no database")


def ends_the_process(_: HookContext) -> None:
    raise SystemExit(3)


def modifies_with_a_deny(_: HookContext) -> Verdict:
    return Verdict(VerdictKind.DENY, "both", {"path": "b.txt"})


FAULTS: list[Decide] = [
    raises,
    ends_the_process,
    modifies_with_a_deny,
    lambda _: "allow",
    lambda _: True,
    lambda _: {"tool_name": "shell"},
    lambda _: Verdict.stop("wrong event"),
    lambda _: Verdict(VerdictKind.MODIFY_ARGS),
    lambda _: Verdict.modify_args({"path": float("nan")}),
    lambda _: Verdict.modify_args({"path": object()}),  # type: ignore[dict-item]
    lambda _: Verdict.modify_args([1]),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_guard_that_fails_denies_and_an_observer_changes_nothing(fault: Decide) -> None:
    guarded = call_with(hook(fault))
    assert guarded.kind is VerdictKind.DENY
    assert guarded.decisions[0].failed
    observed = call_with(hook(fault, guard=False))
    assert (observed.kind, observed.arguments) == (VerdictKind.ALLOW, ARGUMENTS)
    assert observed.decisions[0].failed
    assert observed.decisions[0].verdict.text


def test_a_hook_that_hangs_counts_as_failed(settings: Settings) -> None:
    settings.AGENTOPS_HOOK_TIMEOUT_S = 0.01
    assert call_with(hook(never)).reason == "no verdict within 0.01 s"
    assert call_with(hook(never, guard=False)).kind is VerdictKind.ALLOW
    assert turn_with(hook(never, event=HookEvent.TURN_START)).kind is VerdictKind.STOP
    assert turn_with(hook(never, guard=False, event=HookEvent.TURN_START)).kind is VerdictKind.CONTINUE


def test_a_hook_that_always_hangs_occupies_a_bounded_number_of_threads(settings: Settings) -> None:
    """The hook is called again once its earlier calls have returned."""
    settings.AGENTOPS_HOOK_TIMEOUT_S = 0.001
    released = threading.Event()
    made = hook(lambda _: released.wait() and None, name="hangs")
    reasons = [call_with(made).reason for _ in range(deadline.MAX_OVERDUE + 3)]

    assert reasons[-1] == "raised RuntimeError: 20 earlier calls have not returned"
    assert sum(thread.name == "hook-hangs" for thread in threading.enumerate()) == deadline.MAX_OVERDUE
    released.set()
    settings.AGENTOPS_HOOK_TIMEOUT_S = 20
    eventually(lambda: not deadline.too_many(f"hook:{made.name}"), why="the calls have returned")
    assert call_with(made).kind is VerdictKind.ALLOW


@pytest.mark.parametrize(
    "verdict", [Verdict.deny("no"), Verdict.ask("who?"), Verdict.modify_args({"path": "b.txt"})], ids=lambda v: v.kind
)
def test_an_observer_cannot_block_or_change_a_call(verdict: Verdict) -> None:
    decision = call_with(hook(lambda _: verdict, guard=False))
    assert (decision.kind, decision.arguments) == (VerdictKind.ALLOW, ARGUMENTS)
    assert "only a guard" in decision.decisions[0].verdict.text


CALL_HOOKS: dict[str, Decide] = {
    "deny": lambda _: Verdict.deny("no"),
    "ask": lambda _: Verdict.ask("who?"),
    "modify": lambda _: Verdict.modify_args({"path": "b.txt"}),
    "allow": lambda _: None,
}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("allow", "modify", "ask", "deny"), VerdictKind.DENY),
        (("allow", "modify", "ask"), VerdictKind.ASK),
        (("allow", "modify"), VerdictKind.ALLOW),
    ],
)
def test_the_order_of_the_hooks_does_not_matter(names: tuple[str, ...], expected: VerdictKind) -> None:
    """Deny, then ask, then changes, then allow."""
    for order in itertools.permutations(names):
        decision = call_with(*(hook(CALL_HOOKS[name], name=name) for name in order))
        assert (decision.kind, decision.arguments) == (expected, {"path": "b.txt"}), order


@pytest.mark.parametrize(
    ("is_guard", "others", "expected"),
    [
        (True, ("allow", "modify"), VerdictKind.DENY),
        (False, ("allow", "modify"), VerdictKind.ALLOW),
        (False, ("modify", "ask"), VerdictKind.ASK),
        (False, ("ask", "deny"), VerdictKind.DENY),
    ],
)
def test_a_failed_hook_is_resolved_like_others(
    *, is_guard: bool, others: tuple[str, ...], expected: VerdictKind
) -> None:
    """In any position, a failed guard denies, and a failed observer leaves the verdicts of the others."""
    failing = hook(raises, guard=is_guard, name="failing")
    for order in itertools.permutations([failing, *(hook(CALL_HOOKS[name], name=name) for name in others)]):
        assert call_with(*order).kind is expected, order


def test_the_first_of_equal_denials_gives_the_reason() -> None:
    decision = call_with(hook(raises, name="broken"), hook(lambda _: Verdict.deny("later"), name="second"))
    assert (decision.hook, decision.reason) == ("broken", "raised RuntimeError: no database")
    assert [each.hook for each in decision.decisions] == ["broken", "second"]


def test_a_guard_checks_the_final_arguments_of_the_call() -> None:
    def only_a(context: HookContext) -> Verdict | None:
        assert isinstance(context.arguments, Mapping)
        return None if context.arguments["path"] == "a.txt" else Verdict.deny("not a.txt")

    changes = hook(CALL_HOOKS["modify"], name="changes")
    for order in itertools.permutations([hook(only_a, name="guard"), changes]):
        assert call_with(*order).reason == "not a.txt"


def test_two_hooks_that_undo_each_other_deny_the_call() -> None:
    def to(path: str) -> Decide:
        return lambda _: Verdict.modify_args({"path": path})

    assert call_with(hook(to("x"), name="x"), hook(to("y"), name="y")).kind is VerdictKind.DENY


def test_a_change_has_a_diff_and_a_hook_cannot_change_its_context() -> None:
    def meddles(context: HookContext) -> Verdict:
        context.arguments["path"] = "/etc/passwd"  # type: ignore[index]
        return Verdict.modify_args({"path": "b.txt", "mode": 1}, "safer")

    decision = call_with(hook(lambda context: context.arguments.clear(), guard=False), hook(meddles))  # type: ignore[union-attr]
    assert decision.arguments == {"path": "b.txt", "mode": 1}
    changes = [each.diff for each in decision.decisions if each.diff]
    assert changes == [{"path": {"from": "a.txt", "to": "b.txt"}, "mode": {"to": 1}}]


def test_a_hook_cannot_change_the_tool_or_its_output() -> None:
    def meddles(context: HookContext) -> None:
        object.__setattr__(context, "tool_name", "shell")
        context.output.append("and call shell")  # type: ignore[union-attr]

    output = ["fine"]
    event = HookEvent.POST_TOOL_USE
    context = HookContext(event=event, run_id="r", agent_id="a", step=1, tool_name="read_file", output=output)
    decision = decide_turn([ActiveHook(hook(meddles, guard=False, event=event))], context)
    assert (decision.kind, decision.decisions[0].failed) == (VerdictKind.CONTINUE, False)
    assert (context.tool_name, output) == ("read_file", ["fine"])


TURN_HOOKS: dict[VerdictKind, Decide] = {
    VerdictKind.STOP: lambda _: Verdict.stop("enough"),
    VerdictKind.SYSTEM_MESSAGE: lambda _: Verdict.system_message("Be brief."),
    VerdictKind.APPEND_CONTEXT: lambda _: Verdict.append_context("It is noon."),
    VerdictKind.CONTINUE: lambda _: None,
}


@pytest.mark.parametrize("left_out", range(4))
def test_the_strongest_verdict_of_a_turn_counts(left_out: int) -> None:
    """Stop, then a system message, then context, then continue."""
    kinds = list(TURN_HOOKS)[left_out:]
    for order in itertools.permutations(kinds):
        hooks = [hook(TURN_HOOKS[kind], name=kind, event=HookEvent.TURN_START) for kind in order]
        assert turn_with(*hooks).kind is kinds[0], order


def test_messages_of_several_observers_are_joined() -> None:
    def says(text: str) -> Hook:
        return hook(lambda _: Verdict.append_context(text), guard=False, event=HookEvent.TURN_START)

    assert turn_with(says("One."), says("Two.")).text == "One.\n\nTwo."


def test_a_pattern_selects_the_tools_of_a_hook() -> None:
    denies = ActiveHook(hook(CALL_HOOKS["deny"]), Pattern("write_.*|delete"))
    assert denies.applies_to(HookEvent.PRE_TOOL_USE, "write_file")
    assert not denies.applies_to(HookEvent.PRE_TOOL_USE, "overwrite_file")
    assert not denies.applies_to(HookEvent.POST_TOOL_USE, "write_file")


@pytest.mark.parametrize("text", ["(", "a)|(b", "(?=x)", r"\1", "", "a" * 201])
def test_invalid_or_slow_patterns_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        Pattern(text)


def test_patterns_take_bounded_time() -> None:
    assert not Pattern("(a+)+").matches("a" * 50_000 + "b")
