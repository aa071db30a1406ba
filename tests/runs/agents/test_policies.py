"""Policies: every trigger with every action, in every form, and the error of each invalid one."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from runs.agents.policies import (
    ErrorKind,
    InvalidPolicy,
    OnCrash,
    OnUnknownTool,
    PolicyAction,
    Trigger,
    decide,
    kind_of,
    parse,
    rule_for,
    seconds_of,
    wait_s,
)

TABLE = """
| | nudge | done | fail | resume | escalate | gate | pause | accept |
|---|---|---|---|---|---|---|---|---|
| on_idle | yes | yes | yes | no: it is still running | yes | yes | no | no |
| on_dead | no: it has exited | yes | yes | yes | yes | yes | no | no |
| on_error | no | no | yes | yes | yes | yes | no | no |
| on_prompt | no | yes | yes | no | yes | yes | no | no |
| on_cut | no | no | yes | yes | yes | no | yes | yes |
| on_refused | no | no | yes | yes | yes | no | yes | yes |
"""


def cells() -> list[tuple[str, str, bool]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.strip().splitlines()]
    [_, *actions], _, *rows = lines
    return [(row[0], action, cell == "yes") for row in rows for action, cell in zip(actions, row[1:], strict=True)]


def rule_of(action: str) -> dict[str, Any]:
    return {"action": action, **({"run": "make check"} if action == "gate" else {})}


def in_form(form: str, action: str) -> Any:
    if form == "word":
        return action
    return rule_of(action) if form == "rule" else [{"match": ["max_turns"], "action": "fail"}, rule_of(action)]


FORMS = [(*cell, form) for cell, form in product(cells(), ["word", "rule", "list"])]


@pytest.mark.parametrize(("trigger", "action", "valid", "form"), FORMS, ids=str)
def test_every_cell_of_the_table(trigger: str, action: str, valid: bool, form: str) -> None:
    if form == "list" and trigger != "on_error":
        given = {trigger: [rule_of(action)]}
    elif form == "word" and action == "gate" and valid:
        with pytest.raises(InvalidPolicy, match="needs `run`"):
            parse({trigger: "gate"})
        return
    else:
        given = {trigger: in_form(form, action)}
    if valid:
        assert parse(given).rules[Trigger(trigger)][-1].action == action
        return
    with pytest.raises(InvalidPolicy) as refusal:
        parse(given)
    assert trigger in str(refusal.value)
    assert action in str(refusal.value)
    assert refusal.value.path[0] == trigger


@pytest.mark.parametrize("form", ["word", "rule", "list"])
def test_recover_is_resume(form: str) -> None:
    given = {"word": "recover", "rule": {"action": "recover"}, "list": [{"action": "recover"}]}[form]
    [rule] = parse({"on_dead": given}).rules[Trigger.ON_DEAD]

    assert rule.action is PolicyAction.RESUME
    assert str(rule.action) == "resume"


def test_a_missing_action_is_nudge_where_that_is_valid() -> None:
    [rule] = parse({"on_idle": {"message": "Go on."}}).rules[Trigger.ON_IDLE]
    assert (rule.action, rule.message, rule.append, rule.attempts) == (PolicyAction.NUDGE, "Go on.", True, 1)
    with pytest.raises(InvalidPolicy, match="on_dead cannot nudge"):
        parse({"on_dead": {"message": "Go on."}})


@pytest.mark.parametrize("trigger", [Trigger.ON_CUT, Trigger.ON_REFUSED])
def test_a_missing_action_about_an_answer_is_pause(trigger: Trigger) -> None:
    [rule] = parse({trigger: {"attempts": 2}}).rules[trigger]
    assert rule.action is PolicyAction.PAUSE


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("60s", 60),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("90", 90),
        (" 5 m ", 300),
        (7, 7),
        ("1.5s", 1.5),
        (0.25, 0.25),
        ("0", 0),
    ],
)
def test_durations(text: Any, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "s", "-1s", "1y", "5 apples", "1e3", "１s", "0x10", "1,5s", None, True, [1], -1]
)
def test_invalid_durations(text: Any) -> None:
    with pytest.raises(ValueError, match="duration"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"on_dead": {"action": "bogus"}}, ("on_dead", "action")),
        ({"on_dead": "bogus"}, ("on_dead", "action")),
        ({"on_dead": 5}, ("on_dead",)),
        ({"on_dead": []}, ("on_dead",)),
        ({"on_dead": {"action": "resume", "cooldown": "-1s"}}, ("on_dead", "cooldown")),
        ({"on_dead": {"action": "resume", "cooldown": "1y"}}, ("on_dead", "cooldown")),
        ({"on_dead": {"action": "resume", "cooldown": "31d"}}, ("on_dead", "cooldown")),
        ({"on_dead": {"action": "resume", "attempts": 0}}, ("on_dead", "attempts")),
        ({"on_dead": {"action": "resume", "attempts": True}}, ("on_dead", "attempts")),
        ({"on_dead": {"action": "resume", "attempts": "always"}}, ("on_dead", "attempts")),
        ({"on_dead": {"action": "resume", "append": "no"}}, ("on_dead", "append")),
        ({"on_dead": {"action": "resume", "append": False}}, ("on_dead", "append")),
        ({"on_dead": {"action": "fail", "append": False, "message": "x"}}, ("on_dead", "append")),
        ({"on_dead": {"action": "resume", "message": "  "}}, ("on_dead", "message")),
        ({"on_dead": {"action": "resume", "retries": 1}}, ("on_dead", "retries")),
        ({"on_dead": {"action": "resume", "run": "make"}}, ("on_dead", "run")),
        ({"on_dead": {"action": "resume", "match": ["rate_limited"]}}, ("on_dead", "match")),
        ({"on_error": [{"action": "fail"}, {"action": "resume", "match": ["bogus"]}]}, ("on_error", 1, "match")),
        ({"on_error": [{"action": "fail"}] * 21}, ("on_error",)),
        ({"on_eror": "fail"}, ("on_eror",)),
        ({"on_unknown_tool": "guess"}, ("on_unknown_tool",)),
        ({"on_crash": 1}, ("on_crash",)),
    ],
    ids=str,
)
def test_what_it_refuses(given: dict[str, Any], path: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidPolicy) as refusal:
        parse(given)
    assert refusal.value.path == path


def test_no_policies_means_defaults() -> None:
    policies = parse({})

    assert (policies.on_unknown_tool, policies.on_crash) == (OnUnknownTool.WAIT, OnCrash.ROLL_FORWARD)
    assert [decide(policies, trigger, attempt_count=0) for trigger in Trigger] == [None] * 6


def test_the_first_matching_rule_decides() -> None:
    policies = parse(
        {"on_error": [{"match": "rate_limited", "action": "resume", "cooldown": "60s", "attempts": 2}, "escalate"]}
    )

    limited = decide(policies, Trigger.ON_ERROR, attempt_count=0, kind=ErrorKind.RATE_LIMITED)
    assert limited is not None
    assert (limited.rule.action, limited.rule.cooldown_s, limited.exhausted) == (PolicyAction.RESUME, 60.0, False)
    other = decide(policies, Trigger.ON_ERROR, attempt_count=0, kind=ErrorKind.UNAUTHORIZED)
    assert other is not None
    assert other.rule.action is PolicyAction.ESCALATE


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("resume", False),
        ([{"action": "resume", "match": ["other", "rate_limited"]}], False),
        ([{"action": "fail"}, {"action": "resume", "match": ["max_turns"]}], True),
    ],
    ids=["all", "others", "named"],
)
def test_a_step_budget_matches_only_a_rule_that_names_it(given: Any, asked: bool) -> None:
    rule = rule_for(parse({"on_error": given}), Trigger.ON_ERROR, ErrorKind.MAX_TURNS)

    assert (rule is not None) is asked
    assert rule is None or rule.action is PolicyAction.RESUME


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("rate_limited", ErrorKind.RATE_LIMITED),
        ("rate_limit", ErrorKind.RATE_LIMITED),
        ("no_internet", ErrorKind.NO_INTERNET),
        ("network_error", ErrorKind.NO_INTERNET),
        ("timeout", ErrorKind.NO_INTERNET),
        ("ReadError", ErrorKind.NO_INTERNET),
        ("out_of_credits", ErrorKind.OUT_OF_CREDITS),
        ("unauthorized", ErrorKind.UNAUTHORIZED),
        ("max_turns", ErrorKind.MAX_TURNS),
        ("error_max_turns", ErrorKind.MAX_TURNS),
        ("server_error", ErrorKind.OTHER),
        ("unusable_agent", ErrorKind.OTHER),
        ("", ErrorKind.OTHER),
    ],
)
def test_words_for_errors_have_an_error_kind(word: str, kind: ErrorKind) -> None:
    assert kind_of(word) is kind


def test_every_error_kind_has_a_word() -> None:
    assert {kind_of(kind) for kind in ErrorKind} == set(ErrorKind)


@pytest.mark.parametrize(("made", "least"), [(0, 0), (1, 1), (2, 3), (5, 31), (9, 300), (10_000, 300)])
def test_unlimited_attempts_back_off(made: int, least: float) -> None:
    """Otherwise a run that fails at once would be resumed at once forever; a longer cooldown is kept."""
    [rule] = parse({"on_error": {"action": "resume", "attempts": "forever"}}).rules[Trigger.ON_ERROR]
    [slow] = parse({"on_error": {"action": "resume", "attempts": "forever", "cooldown": "1h"}}).rules[Trigger.ON_ERROR]
    [counted] = parse({"on_error": {"action": "resume", "attempts": 1000}}).rules[Trigger.ON_ERROR]

    assert [wait_s(rule, made), wait_s(slow, made), wait_s(counted, made)] == [least, 3600, 0]


def test_exhausted_attempts_escalate() -> None:
    policies = parse({"on_error": {"action": "resume", "attempts": 2, "message": "Try again."}})
    verdicts = [decide(policies, Trigger.ON_ERROR, attempt_count=made) for made in range(4)]

    assert [verdict.rule.action for verdict in verdicts if verdict] == ["resume", "resume", "escalate", "escalate"]
    assert [verdict.exhausted for verdict in verdicts if verdict] == [False, False, True, True]


def test_forever_is_never_exhausted() -> None:
    verdict = decide(
        parse({"on_dead": {"action": "resume", "attempts": "forever"}}), Trigger.ON_DEAD, attempt_count=10_000
    )

    assert verdict is not None
    assert (verdict.rule.action, verdict.exhausted) == (PolicyAction.RESUME, False)
