"""Policies: automatic reactions to a run that is idle, dead, failed or waiting for a person, or has no whole answer.

`parse` validates the `policies` of an agent's definition. `decide` selects the rule that applies to a trigger.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from runs.agents import call_rules
from runs.agents.call_rules import ApprovalRule, InvalidPolicy, member_of, refuse_unknown, seconds_of
from runs.hooks.deciding import ActiveHook

MAX_MESSAGE = 200_000
MAX_GATE = 1_000
MAX_RULES = 20
MAX_ATTEMPTS = 1_000
MAX_COOLDOWN_S = 30 * 86_400.0
#: The value of `attempts` for an unlimited number.
FOREVER = "forever"
#: Maximum backoff between unlimited attempts, in seconds.
MAX_BACKOFF_S = 300.0


class Trigger(enum.StrEnum):
    """The states of a run to which policies react."""

    #: The turn ended without a call of `done`, or an external runner stopped sending events.
    ON_IDLE = "on_idle"
    #: The worker or process of the run has died.
    ON_DEAD = "on_dead"
    #: The run failed after all retries.
    ON_ERROR = "on_error"
    #: The agent asks a question or requests an approval.
    ON_PROMPT = "on_prompt"
    #: The model reached a limit of tokens before the end of its answer.
    ON_CUT = "on_cut"
    #: The model refused to answer, or a filter of the provider stopped the answer.
    ON_REFUSED = "on_refused"


class PolicyAction(enum.StrEnum):
    """The actions of a rule."""

    NUDGE = "nudge"
    DONE = "done"
    FAIL = "fail"
    RESUME = "resume"
    ESCALATE = "escalate"
    GATE = "gate"
    PAUSE = "pause"
    ACCEPT = "accept"


class ErrorKind(enum.StrEnum):
    """The kinds of errors that a rule of `on_error` can match."""

    RATE_LIMITED = "rate_limited"
    NO_INTERNET = "no_internet"
    OUT_OF_CREDITS = "out_of_credits"
    UNAUTHORIZED = "unauthorized"
    MAX_TURNS = "max_turns"
    OTHER = "other"


class OnUnknownTool(enum.StrEnum):
    """What to do about a tool call whose outcome is unknown after a crash."""

    WAIT = "wait"
    TELL_MODEL = "tell_model"


class OnCrash(enum.StrEnum):
    """How a turn that a crash interrupted is recovered."""

    ROLL_FORWARD = "roll_forward"
    ROLL_BACK = "roll_back"


#: The triggers about an answer that does not end its run, and all others.
OF_ANSWERS = (Trigger.ON_CUT, Trigger.ON_REFUSED)
_OF_RUNS = tuple(trigger for trigger in Trigger if trigger not in OF_ANSWERS)
#: Other names of actions, which definitions and imported records may contain.
ALIASES = {"recover": PolicyAction.RESUME, "Recover": PolicyAction.RESUME}
#: The combinations that are rejected, with the reason.
INVALID = {
    (Trigger.ON_IDLE, PolicyAction.RESUME): "an idle agent is still running",
    (Trigger.ON_DEAD, PolicyAction.NUDGE): "a dead agent has exited and receives no messages",
    (Trigger.ON_ERROR, PolicyAction.NUDGE): "a failed agent receives no messages",
    (Trigger.ON_ERROR, PolicyAction.DONE): "a failed run is not done",
    (Trigger.ON_PROMPT, PolicyAction.NUDGE): "the agent waits for an answer",
    (Trigger.ON_PROMPT, PolicyAction.RESUME): "the agent is still running",
    **dict.fromkeys(product(OF_ANSWERS, [PolicyAction.NUDGE]), "resume sends a message after such an answer"),
    **dict.fromkeys(product(OF_ANSWERS, [PolicyAction.DONE]), "accept completes a run with such an answer"),
    **dict.fromkeys(product(OF_ANSWERS, [PolicyAction.GATE]), "a gate decides whether a whole answer is enough"),
    **dict.fromkeys(product(_OF_RUNS, [PolicyAction.PAUSE]), "escalate pauses the run and notifies people"),
    **dict.fromkeys(product(_OF_RUNS, [PolicyAction.ACCEPT]), "only a cut or refused answer can be accepted"),
}
#: Error type of a provider, an HTTP library or a runner → its kind. Other error types are `other`.
KINDS = {
    **dict.fromkeys(["rate_limited", "rate_limit", "RateLimitError"], ErrorKind.RATE_LIMITED),
    **dict.fromkeys(["no_internet", "network_error", "timeout", "incomplete_answer"], ErrorKind.NO_INTERNET),
    # Raised by the HTTP libraries when a stream breaks.
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


@dataclass(frozen=True)
class PolicyRule:
    """One rule of a trigger: an action and its options."""

    action: PolicyAction
    message: str | None = None
    #: Whether the message is appended to the conversation. If not, it starts a new conversation.
    append: bool = True
    #: Maximum attempts. None: unlimited.
    attempts: int | None = 1
    #: Delay before each attempt, in seconds.
    cooldown_s: float = 0.0
    #: For gates: the command or tool that decides.
    run: str | None = None
    #: For on_error: the kinds of errors that the rule matches. Empty: all except `max_turns`.
    match: frozenset[ErrorKind] = frozenset()

    @property
    def is_counted(self) -> bool:
        """Whether `attempts` limits the rule. Other actions end the run or hand it to a person."""
        return self.action in (PolicyAction.NUDGE, PolicyAction.RESUME)


@dataclass(frozen=True)
class Policies:
    """The policies of one agent: the rules of each trigger, in the order of evaluation."""

    rules: Mapping[Trigger, tuple[PolicyRule, ...]]
    on_unknown_tool: OnUnknownTool = OnUnknownTool.WAIT
    on_crash: OnCrash = OnCrash.ROLL_FORWARD
    #: The hooks of the definition, without the site's hooks.
    hooks: tuple[ActiveHook, ...] = ()
    approvals: tuple[ApprovalRule, ...] = ()


@dataclass(frozen=True)
class PolicyDecision:
    """The rule to apply."""

    rule: PolicyRule
    #: Whether the attempts of the matching rule are used up; `rule` then escalates instead.
    exhausted: bool = False


def parse(value: Mapping[str, Any]) -> Policies:
    """Parse the `policies` of a definition. Raises `InvalidPolicy`."""
    names = {*Trigger, "on_unknown_tool", "on_crash", "hooks", "approvals"}
    for name in value:
        if name not in names:
            raise InvalidPolicy(f"unknown policy {str(name)[:64]!r}; use one of: {', '.join(sorted(names))}", [name])
    return Policies(
        rules={trigger: _rules(trigger, value[trigger]) for trigger in Trigger if trigger in value},
        on_unknown_tool=member_of(OnUnknownTool, value.get("on_unknown_tool", OnUnknownTool.WAIT), ["on_unknown_tool"]),
        on_crash=member_of(OnCrash, value.get("on_crash", OnCrash.ROLL_FORWARD), ["on_crash"]),
        hooks=call_rules.hooks_of(value.get("hooks", [])),
        approvals=call_rules.approval_rules_of(value.get("approvals", [])),
    )


def faults(name: str, value: object) -> list[InvalidPolicy]:
    """Return the errors of one policy: of a list, the first error of each rule; otherwise the first error."""
    try:
        parse({name: value})
    except InvalidPolicy as error:
        each = [_fault_of(name, index, item) for index, item in enumerate(value)] if isinstance(value, list) else []
        return [fault for fault in each if fault is not None] or [error]
    return []


def _fault_of(name: str, index: int, item: object) -> InvalidPolicy | None:
    """Return the error of a rule in a list, with the path of the rule; None if it is valid."""
    try:
        parse({name: [item]})
    except InvalidPolicy as error:
        return InvalidPolicy(str(error), [name, index, *error.path[2:]])
    return None


def decide(
    policies: Policies, trigger: Trigger, *, attempt_count: int, kind: ErrorKind = ErrorKind.OTHER
) -> PolicyDecision | None:
    """Return the decision after `attempt_count` attempts in the run's lineage, or None if no rule matches."""
    rule = rule_for(policies, trigger, kind)
    if rule is None:
        return None
    if rule.is_counted and rule.attempts is not None and attempt_count >= rule.attempts:
        escalation = PolicyRule(PolicyAction.ESCALATE, message=rule.message, attempts=rule.attempts)
        return PolicyDecision(escalation, exhausted=True)
    return PolicyDecision(rule)


def rule_for(policies: Policies, trigger: Trigger, kind: ErrorKind = ErrorKind.OTHER) -> PolicyRule | None:
    """Return the first matching rule, or None.

    A rule without `match` does not match `max_turns`: a run that reaches its step limit pauses and waits for a person.
    """
    for rule in policies.rules.get(trigger, ()):
        if kind in rule.match or (not rule.match and kind is not ErrorKind.MAX_TURNS):
            return rule
    return None


def wait_s(rule: PolicyRule, attempt_count: int) -> float:
    """Return the seconds to wait before the next attempt, after `attempt_count` attempts.

    Rules with unlimited attempts back off exponentially, up to `MAX_BACKOFF_S`: a run that fails at once would
    otherwise be resumed in a tight loop.
    """
    if rule.attempts is not None:
        return rule.cooldown_s
    return max(rule.cooldown_s, min(2.0 ** min(attempt_count, 16) - 1, MAX_BACKOFF_S))


def kind_of(error_type: str) -> ErrorKind:
    """Return the kind of an error type. Unknown types are `other`."""
    return KINDS.get(error_type, ErrorKind.OTHER)


def _rules(trigger: Trigger, value: object) -> tuple[PolicyRule, ...]:
    """Parse the value of a trigger: the name of an action, a rule, or a list of rules."""
    if not isinstance(value, list):
        return (_rule(trigger, value, [trigger]),)
    if not 1 <= len(value) <= MAX_RULES:
        raise InvalidPolicy(f"{trigger} must have 1 to {MAX_RULES} rules, not {len(value)}", [trigger])
    return tuple(_rule(trigger, rule, [trigger, index]) for index, rule in enumerate(value))


def _rule(trigger: Trigger, value: object, path: list[str | int]) -> PolicyRule:
    """Parse a rule: the name of an action, or a table of options. Raises `InvalidPolicy`."""
    if isinstance(value, str):
        value = {"action": value}
    if not isinstance(value, Mapping):
        raise InvalidPolicy(f"{trigger} must be an action, a rule, or a list of rules", path)
    refuse_unknown(value, OPTIONS, path)
    default = PolicyAction.PAUSE if trigger in OF_ANSWERS else PolicyAction.NUDGE
    action = _action(trigger, value.get("action", default), path)
    gate = _text(value, "run", MAX_GATE, path)
    if (action is PolicyAction.GATE) != (gate is not None):
        problem = (
            "a gate needs `run`: a tool or a command"
            if action is PolicyAction.GATE
            else f"`run` is only valid for the action gate, not {action}"
        )
        raise InvalidPolicy(problem, [*path, "run"])
    return PolicyRule(
        action=action,
        message=_text(value, "message", MAX_MESSAGE, path),
        append=_append(value, action, path),
        attempts=_attempts(value.get("attempts", 1), path),
        cooldown_s=_cooldown(value.get("cooldown", 0), path),
        run=gate,
        match=_match(trigger, value.get("match", ()), path),
    )


def _action(trigger: Trigger, value: object, path: list[str | int]) -> PolicyAction:
    """Return the action with this name, if the trigger allows it. Raises `InvalidPolicy`."""
    name = ALIASES.get(value, value) if isinstance(value, str) else value
    if name not in tuple(PolicyAction):
        problem = f"unknown action {str(value)[:64]!r}; use one of: {', '.join(PolicyAction)}"
        raise InvalidPolicy(problem, [*path, "action"])
    action = PolicyAction(str(name))
    if (trigger, action) in INVALID:
        problem = f"{trigger} cannot {action}: {INVALID[trigger, action]}"
        raise InvalidPolicy(problem, [*path, "action"])
    return action


def _append(value: Mapping[str, Any], action: PolicyAction, path: list[str | int]) -> bool:
    append = value.get("append", True)
    if not isinstance(append, bool):
        raise InvalidPolicy("append must be true or false", [*path, "append"])
    if not append and (action is not PolicyAction.RESUME or value.get("message") is None):
        raise InvalidPolicy("append = false requires the action resume and a message", [*path, "append"])
    return append


def _attempts(value: object, path: list[str | int]) -> int | None:
    if value == FOREVER:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_ATTEMPTS:
        problem = f'attempts must be a whole number from 1 to {MAX_ATTEMPTS}, or "{FOREVER}", not {str(value)[:64]!r}'
        raise InvalidPolicy(problem, [*path, "attempts"])
    return value


def _cooldown(value: object, path: list[str | int]) -> float:
    try:
        seconds = seconds_of(value)
    except ValueError as error:
        raise InvalidPolicy(str(error), [*path, "cooldown"]) from None
    if seconds > MAX_COOLDOWN_S:
        raise InvalidPolicy("cooldown must be at most 30 days", [*path, "cooldown"])
    return seconds


def _match(trigger: Trigger, value: object, path: list[str | int]) -> frozenset[ErrorKind]:
    """Return the kinds of errors that a rule names. Raises `InvalidPolicy`."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(name in tuple(ErrorKind) for name in names):
        raise InvalidPolicy(f"match must be one or more of {', '.join(ErrorKind)}", [*path, "match"])
    if names and trigger is not Trigger.ON_ERROR:
        raise InvalidPolicy(f"match is only valid for on_error, not {trigger}", [*path, "match"])
    return frozenset(map(ErrorKind, names))


def _text(value: Mapping[str, Any], name: str, max_length: int, path: list[str | int]) -> str | None:
    """Return the option `name`, or None if it is missing. Raises `InvalidPolicy`."""
    text = value.get(name)
    if text is None:
        return None
    if not isinstance(text, str) or not text.strip() or len(text) > max_length:
        raise InvalidPolicy(f"{name} must be a text of 1 to {max_length} characters", [*path, name])
    return text
