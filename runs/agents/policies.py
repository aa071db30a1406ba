"""Policies: what becomes of a run that fell silent, died, failed or asks, without anybody deciding it.

A definition is read strictly and once; what is read here can be acted on.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_MESSAGE = 200_000
MAX_GATE = 1_000
MAX_RULES = 20
MAX_ATTEMPTS = 1_000
MAX_COOLDOWN_S = 30 * 86_400.0
SECONDS_OF = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "": 1.0}
DURATION = re.compile(r"\s*(?P<number>[0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(?P<unit>[a-z]*)\s*", re.ASCII)
FOREVER = "forever"
#: Endless attempts come at least so often.
MAX_PACE_S = 300.0


class Trigger(enum.StrEnum):
    #: The turn ended and the agent did not say that it is done, or an external runner fell silent.
    ON_IDLE = "on_idle"
    #: Its worker or process is gone.
    ON_DEAD = "on_dead"
    #: It failed, after all retries.
    ON_ERROR = "on_error"
    #: It asks a question, or for a permission.
    ON_PROMPT = "on_prompt"


class PolicyAction(enum.StrEnum):
    NUDGE = "nudge"
    DONE = "done"
    FAIL = "fail"
    RESUME = "resume"
    ESCALATE = "escalate"
    GATE = "gate"


class ErrorKind(enum.StrEnum):
    """What a rule of on_error may be about."""

    RATE_LIMITED = "rate_limited"
    NO_INTERNET = "no_internet"
    OUT_OF_CREDITS = "out_of_credits"
    UNAUTHORIZED = "unauthorized"
    MAX_TURNS = "max_turns"
    OTHER = "other"


class OnUnknownTool(enum.StrEnum):
    """What to do about a call whose outcome a crash has hidden."""

    WAIT = "wait"
    TELL_MODEL = "tell_model"


class OnCrash(enum.StrEnum):
    """Which way a half-done turn goes."""

    ROLL_FORWARD = "roll_forward"
    ROLL_BACK = "roll_back"


#: Older definitions, and records of them, call it so.
ALIASES = {"recover": PolicyAction.RESUME, "Recover": PolicyAction.RESUME}
#: The pairs that make no sense, and why.
INVALID = {
    (Trigger.ON_IDLE, PolicyAction.RESUME): "an idle agent is still running",
    (Trigger.ON_DEAD, PolicyAction.NUDGE): "a dead agent hears nothing: it has exited",
    (Trigger.ON_ERROR, PolicyAction.NUDGE): "an agent that failed hears nothing",
    (Trigger.ON_ERROR, PolicyAction.DONE): "a run that failed is not done",
    (Trigger.ON_PROMPT, PolicyAction.NUDGE): "an agent that asks waits for an answer",
    (Trigger.ON_PROMPT, PolicyAction.RESUME): "an agent that asks is still running",
}
#: What providers, networks and runners call their failures; everything else is `other`.
KINDS = {
    **dict.fromkeys(["rate_limited", "rate_limit", "RateLimitError"], ErrorKind.RATE_LIMITED),
    **dict.fromkeys(["no_internet", "network_error", "timeout", "incomplete_answer"], ErrorKind.NO_INTERNET),
    # Of the libraries that read a stream which breaks in the middle.
    **dict.fromkeys(["ConnectError", "ConnectTimeout", "ReadError", "ReadTimeout"], ErrorKind.NO_INTERNET),
    **dict.fromkeys(["WriteError", "WriteTimeout", "PoolTimeout", "NetworkError"], ErrorKind.NO_INTERNET),
    **dict.fromkeys(["RemoteProtocolError", "APIConnectionError", "APITimeoutError"], ErrorKind.NO_INTERNET),
    **dict.fromkeys(["out_of_credits", "insufficient_quota"], ErrorKind.OUT_OF_CREDITS),
    **dict.fromkeys(
        ["unauthorized", "missing_key", "authentication_error", "permission_error"], ErrorKind.UNAUTHORIZED
    ),
    **dict.fromkeys(["max_turns", "max_steps", "error_max_turns"], ErrorKind.MAX_TURNS),
}
OPTIONS = frozenset({"action", "message", "append", "attempts", "cooldown", "match", "run"})


class InvalidPolicy(ValueError):
    """A policy that cannot be acted on; `path` leads to what is at fault."""

    code = "invalid_policy"

    def __init__(self, text: str, path: Sequence[str | int]) -> None:
        super().__init__(text)
        self.path = tuple(path)


@dataclass(frozen=True)
class PolicyRule:
    """What to do, and how often."""

    action: PolicyAction
    message: str | None = None
    #: Whether the message goes on in the conversation; otherwise it begins a new one.
    append: bool = True
    #: None: as often as it takes.
    attempts: int | None = 1
    cooldown_s: float = 0.0
    #: Of a gate: the command or tool that decides.
    run: str | None = None
    #: Of on_error: the kinds that it is about; empty: all.
    match: frozenset[ErrorKind] = frozenset()

    @property
    def counted(self) -> bool:
        """Whether it has attempts that are used up: the others act once, for good."""
        return self.action in (PolicyAction.NUDGE, PolicyAction.RESUME)


@dataclass(frozen=True)
class Policies:
    """Of one agent: the rules of each trigger, in the order in which they are asked."""

    rules: Mapping[Trigger, tuple[PolicyRule, ...]]
    on_unknown_tool: OnUnknownTool = OnUnknownTool.WAIT
    on_crash: OnCrash = OnCrash.ROLL_FORWARD


@dataclass(frozen=True)
class PolicyDecision:
    """What a policy wants now. `exhausted`: its attempts are used up, and it escalates for that."""

    rule: PolicyRule
    exhausted: bool = False


def parse(given: Mapping[str, Any]) -> Policies:
    """Read a definition's `policies`; raises `InvalidPolicy`."""
    known = {*Trigger, "on_unknown_tool", "on_crash"}
    for name in given:
        if name not in known:
            raise InvalidPolicy(f"there is no policy {str(name)[:64]!r}; known are {', '.join(sorted(known))}", [name])
    return Policies(
        rules={trigger: _rules(trigger, given[trigger]) for trigger in Trigger if trigger in given},
        on_unknown_tool=_word(OnUnknownTool, given, "on_unknown_tool", OnUnknownTool.WAIT),
        on_crash=_word(OnCrash, given, "on_crash", OnCrash.ROLL_FORWARD),
    )


def decide(
    policies: Policies, trigger: Trigger, *, made: int, kind: ErrorKind = ErrorKind.OTHER
) -> PolicyDecision | None:
    """What is wanted after `made` attempts over the lineage; None where no rule is about this."""
    rule = rule_for(policies, trigger, kind)
    if rule is None:
        return None
    if rule.counted and rule.attempts is not None and made >= rule.attempts:
        return PolicyDecision(
            PolicyRule(PolicyAction.ESCALATE, message=rule.message, attempts=rule.attempts), exhausted=True
        )
    return PolicyDecision(rule)


def rule_for(policies: Policies, trigger: Trigger, kind: ErrorKind = ErrorKind.OTHER) -> PolicyRule | None:
    """The first rule that is about this. Having used up its steps is an error only to a rule that names it: a run
    pauses for that, and waits for somebody."""
    for rule in policies.rules.get(trigger, ()):
        if kind in rule.match or (not rule.match and kind is not ErrorKind.MAX_TURNS):
            return rule
    return None


def wait_s(rule: PolicyRule, made: int) -> float:
    """Seconds until the next attempt, after `made` of them. Without an end to them they come slower and slower: a run
    that fails at once would else be resumed at once, for ever."""
    if rule.attempts is not None:
        return rule.cooldown_s
    return max(rule.cooldown_s, min(2.0 ** min(made, 16) - 1, MAX_PACE_S))


def kind_of(error_type: str) -> ErrorKind:
    """The kind of an error by the word that we, or a runner, have for it."""
    return KINDS.get(error_type, ErrorKind.OTHER)


def seconds_of(given: object) -> float:
    """A span: "500ms", "60s", "5m", "2h", "1d", or a number of seconds. Raises ValueError."""
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise ValueError("a span is a text such as 60s or 5m, or a number of seconds")
    found = DURATION.fullmatch(given if isinstance(given, str) else str(given))
    unit = found["unit"] if found else ""
    if found is None or unit not in SECONDS_OF:
        raise ValueError(f"{str(given)[:64]!r} is no span such as 500ms, 60s, 5m, 2h or 1d")
    return float(found["number"]) * SECONDS_OF[unit]


def _rules(trigger: Trigger, given: object) -> tuple[PolicyRule, ...]:
    """A word, a rule, or a list of rules, of which the first that fits is taken."""
    if not isinstance(given, list):
        return (_rule(trigger, given, [trigger]),)
    if not 1 <= len(given) <= MAX_RULES:
        raise InvalidPolicy(f"{trigger} has 1 to {MAX_RULES} rules", [trigger])
    return tuple(_rule(trigger, rule, [trigger, place]) for place, rule in enumerate(given))


def _rule(trigger: Trigger, given: object, path: list[str | int]) -> PolicyRule:
    if isinstance(given, str):
        given = {"action": given}
    if not isinstance(given, Mapping):
        raise InvalidPolicy(f"{trigger} is an action, a rule, or a list of rules", path)
    unknown = sorted(str(name) for name in given if name not in OPTIONS)
    if unknown:
        raise InvalidPolicy(f"a rule has no {unknown[0][:64]!r}", [*path, unknown[0]])
    action = _action(trigger, given.get("action", PolicyAction.NUDGE), path)
    gate = _text(given, "run", MAX_GATE, path)
    if (action is PolicyAction.GATE) != (gate is not None):
        problem = (
            "a gate needs `run`, which decides"
            if action is PolicyAction.GATE
            else f"only a gate has `run`, not {action}"
        )
        raise InvalidPolicy(problem, [*path, "run"])
    return PolicyRule(
        action=action,
        message=_text(given, "message", MAX_MESSAGE, path),
        append=_append(given, action, path),
        attempts=_attempts(given.get("attempts", 1), path),
        cooldown_s=_cooldown(given.get("cooldown", 0), path),
        run=gate,
        match=_match(trigger, given.get("match", ()), path),
    )


def _action(trigger: Trigger, given: object, path: list[str | int]) -> PolicyAction:
    word = ALIASES.get(given, given) if isinstance(given, str) else given
    if word not in tuple(PolicyAction):
        raise InvalidPolicy(f"{str(given)[:64]!r} is no action: {', '.join(PolicyAction)}", [*path, "action"])
    action = PolicyAction(str(word))
    if (trigger, action) in INVALID:
        problem = f"{trigger} cannot {action}: {INVALID[trigger, action]}"
        raise InvalidPolicy(problem, [*path, "action"])
    return action


def _append(given: Mapping[str, Any], action: PolicyAction, path: list[str | int]) -> bool:
    append = given.get("append", True)
    if not isinstance(append, bool):
        raise InvalidPolicy("append is true or false", [*path, "append"])
    if not append and (action is not PolicyAction.RESUME or given.get("message") is None):
        raise InvalidPolicy("append = false begins anew with a message: it needs one, and resume", [*path, "append"])
    return append


def _attempts(given: object, path: list[str | int]) -> int | None:
    if given == FOREVER:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MAX_ATTEMPTS:
        raise InvalidPolicy(f'attempts is a number from 1 to {MAX_ATTEMPTS}, or "{FOREVER}"', [*path, "attempts"])
    return given


def _cooldown(given: object, path: list[str | int]) -> float:
    try:
        seconds = seconds_of(given)
    except ValueError as error:
        raise InvalidPolicy(str(error), [*path, "cooldown"]) from None
    if seconds > MAX_COOLDOWN_S:
        raise InvalidPolicy("a cooldown has at most 30 days", [*path, "cooldown"])
    return seconds


def _match(trigger: Trigger, given: object, path: list[str | int]) -> frozenset[ErrorKind]:
    words = [given] if isinstance(given, str) else given
    if not isinstance(words, list | tuple) or not all(word in tuple(ErrorKind) for word in words):
        raise InvalidPolicy(f"match is any of {', '.join(ErrorKind)}", [*path, "match"])
    if words and trigger is not Trigger.ON_ERROR:
        raise InvalidPolicy(f"only on_error has kinds to match, not {trigger}", [*path, "match"])
    return frozenset(map(ErrorKind, words))


def _text(given: Mapping[str, Any], name: str, most: int, path: list[str | int]) -> str | None:
    text = given.get(name)
    if text is None:
        return None
    if not isinstance(text, str) or not text.strip() or len(text) > most:
        raise InvalidPolicy(f"{name} is a text of 1 to {most} characters", [*path, name])
    return text


def _word(kind: type[enum.StrEnum], given: Mapping[str, Any], name: str, default: Any) -> Any:
    word = given.get(name, default)
    if word not in tuple(kind):
        raise InvalidPolicy(f"{name} is {' or '.join(kind)}, not {str(word)[:64]!r}", [name])
    return kind(str(word))
