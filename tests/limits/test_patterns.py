"""User-written patterns: matched without backtracking, and never for a long time."""

from __future__ import annotations

import pytest

from agentops.base.fair_shares import WorkBudget, WorkExceeded
from agentops.base.patterns import InvalidPattern, Pattern, PatternTooExpensive, cost_of, decision_budget
from runs.agents.call_rules import ApprovalAction, ApprovalRule, decide
from runs.hooks import hook_catalogue
from runs.hooks.base import HookContext, HookEvent, VerdictKind
from runs.hooks.deciding import ActiveHook, decide_call

#: The engine follows 900 parts at once through this text. 200,000 characters take 4 s, in which no other thread runs.
STEEP, LONG = "(?:[ab].{0,99}){9}[0-9]", "abc" * 66_000
#: Pattern → its minimum number of parts, with repetitions written out.
PARTS = {
    "a": 1,
    "abc": 3,
    "a{3}{3}": 9,
    "(?:[ab].{0,900}){9}[0-9]": 8_109,
    "[]a]{3}": 3,
    "[^]a]{30}b": 31,
    "[-]{3}a{9}": 12,
    "[[:alpha:]_]{2,}": 2,
    "(?P<a[>x{9}){9}": 81,
    r"\p{Greek}{30}": 30,
    r"\x{41}{3}": 3,
    "(a|b{3})*": 4,
    r"\[{5}": 5,
    r"[\]{5}]{2}": 2,
    "[a[b]c]{7}": 7,
    "((a{9}){9}){9}": 729,
    "(?i:a{9}|b){2}": 20,
    "(a{99})*{99}": 9_801,
    "(?:a{20})?{20}": 400,
    "[ab]+?b*{3}": 6,
}


def test_pattern_parts_are_counted() -> None:
    for text, least in PARTS.items():
        parts = cost_of(text).parts
        assert least <= parts <= 2 * least + 10, text


def test_invalid_patterns_are_refused() -> None:
    for text, why in {
        "": "1 to 200 characters",
        "a" * 201: "1 to 200 characters",
        "(?=a)": "not a valid pattern",
        "(a": "a group is not closed",
        "a)(b": "a group is closed that was not opened",
        "[a": "a class is not closed",
        "(?x) [ ] (a{99}){99}": "must not have the flag x",
        "a(?ix: b)": "must not have the flag x",
        "(a{99}){99}": "parts with its repetitions written out; at most 2000",
        "(a{99})+{99}": "at most 2000",
        "a{4294967295}": "at most 2000",
    }.items():
        with pytest.raises(InvalidPattern, match=why):
            Pattern(text)


def test_search_is_fast_or_refused() -> None:
    pattern = Pattern(STEEP)
    assert not pattern.occurs_in("abc" * 100)
    assert pattern.occurs_in("a" + "x" * 50 + "a" * 800 + "7")
    with pytest.raises(PatternTooExpensive, match="a text of 198000 characters"):
        pattern.occurs_in(LONG)
    budget = WorkBudget(1_000_000, "steps")
    with pytest.raises(WorkExceeded, match="more than 1000000 steps"):
        [pattern.occurs_in("abc" * 100, budget) for _ in range(1_000)]
    assert Pattern(r"rm\s+-rf").occurs_in(LONG + "rm  -rf")
    assert Pattern(r"\(?x").matches("(x")
    assert decision_budget().left == 1_000_000


def test_guard_that_cannot_search_a_text_denies_the_call() -> None:
    guard = ActiveHook(hook_catalogue.make("command_guard", {"allow": ["echo"], "deny": [STEEP]}))
    for command, kind in [("echo abc", VerdictKind.ALLOW), (f"echo {LONG}", VerdictKind.DENY)]:
        context = HookContext(
            event=HookEvent.PRE_TOOL_USE,
            run_id="r",
            agent_id="a",
            step=1,
            tool_name="shell",
            arguments={"command": command},
        )
        assert decide_call([guard], context).kind is kind


def test_rule_applies_if_its_condition_cannot_be_searched() -> None:
    """As for unreadable arguments, a rule applies unless its action is to allow the call."""
    for action in ApprovalAction:
        rule = ApprovalRule(Pattern(".*"), action, {"text": Pattern(STEEP)})
        assert decide([[rule]], "write", {"text": "abc"}) is None
        assert decide([[rule]], "write", {"text": LONG}) is (None if action is ApprovalAction.AUTO else rule)
    rules = [ApprovalRule(Pattern(".*"), ApprovalAction.DENY, {"text": Pattern(STEEP)})] * 100
    assert decide([rules], "write", {"text": LONG[:5_000]}) is rules[0]
