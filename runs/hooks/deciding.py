"""Calls the hooks of an event, each within its time limit, and combines their verdicts into one decision."""

from __future__ import annotations

import copy
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

from django.conf import settings
from django.db import connections

from agentops.base.http.deadline import MAX_OVERDUE, DeadlineExceeded, TrackedCall, call_within, too_many
from agentops.base.patterns import Pattern
from runs.hooks.base import (
    CALL_ORDER,
    JSON,
    MAX_MESSAGE,
    MAX_REASON,
    OF_GUARDS,
    TURN_ORDER,
    Hook,
    HookContext,
    HookEvent,
    Verdict,
    VerdictKind,
)


def argument_diff(before: Mapping[str, JSON] | str, after: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the changed members of arguments: name → {"from": …, "to": …}. A missing value has no "from" or "to".

    If `before` is a text, the whole change has the empty name. Raises ValueError or TypeError if `after` is not JSON.
    """
    json.dumps(after, allow_nan=False)
    if not all(isinstance(name, str) for name in after):
        raise TypeError("a name is not a string")
    if isinstance(before, str):
        return cast("dict[str, JSON]", {"": {"from": before, "to": dict(after)}})
    diff: dict[str, JSON] = {}
    for name in dict.fromkeys([*before, *after]):
        old = {"from": before[name]} if name in before else {}
        new = {"to": after[name]} if name in after else {}
        if not (old and new and _is_same(before[name], after[name])):
            diff[name] = {**old, **new}
    return diff


def _is_same(one: JSON, other: JSON) -> bool:
    """Compare two values as JSON, in which 1, 1.0 and true differ."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


log = logging.getLogger(__name__)
Arguments = Mapping[str, JSON] | str


@dataclass(frozen=True)
class ActiveHook:
    """A hook of an agent, and the tools that it applies to."""

    hook: Hook
    #: None: all tools.
    tools: Pattern | None = None

    def applies_to(self, event: HookEvent, tool_name: str = "") -> bool:
        """Return whether to call the hook at an event and, if the event is about a call, for this tool."""
        return event in self.hook.events and (self.tools is None or not tool_name or self.tools.matches(tool_name))


@dataclass(frozen=True)
class HookDecision:
    """The verdict of one hook."""

    hook: str
    event: HookEvent
    verdict: Verdict
    duration_ms: int
    #: Whether the hook returned no valid verdict. The verdict then depends on whether it is a guard.
    failed: bool = False
    #: The changed arguments: name → {"from": …, "to": …}.
    diff: dict[str, JSON] | None = None


@dataclass(frozen=True)
class CallDecision:
    """The decision about a tool call: deny, ask or allow, with the arguments to use."""

    kind: VerdictKind
    arguments: Arguments
    reason: str = ""
    #: The hook that denied or asked; empty if the call is allowed.
    hook: str = ""
    decisions: list[HookDecision] = field(default_factory=list)


@dataclass(frozen=True)
class TurnDecision:
    """The decision at any other event: stop, add a message, or continue."""

    kind: VerdictKind
    text: str = ""
    hook: str = ""
    decisions: list[HookDecision] = field(default_factory=list)


def decide_call(hooks: Sequence[ActiveHook], context: HookContext) -> CallDecision:
    """Call the hooks before a tool call, and combine their verdicts: Deny > Ask > ModifyArgs > Allow, in any order.

    Each hook gets the arguments with the changes of the previous hooks. A guard that got other arguments than the final
    ones is called again, and can then no longer change them.
    """
    relevant = [each.hook for each in hooks if each.applies_to(context.event, context.tool_name)]
    arguments, seen, decisions = context.arguments, dict[int, Arguments](), list[HookDecision]()
    for position, hook in enumerate(relevant):
        seen[position] = arguments
        decision = _call_hook(hook, replace(context, arguments=arguments))
        decisions.append(decision)
        if decision.verdict.kind is VerdictKind.MODIFY_ARGS and decision.verdict.arguments is not None:
            arguments = dict(decision.verdict.arguments)
    for position, hook in enumerate(relevant):
        has_set_them = decisions[position].verdict.arguments == arguments
        if hook.guard and seen[position] != arguments and not has_set_them:
            decisions.append(_call_again(hook, replace(context, arguments=arguments)))
    strongest = _strongest(decisions, CALL_ORDER)
    if strongest is None or strongest.verdict.kind in (VerdictKind.ALLOW, VerdictKind.MODIFY_ARGS):
        return CallDecision(VerdictKind.ALLOW, arguments, decisions=decisions)
    return CallDecision(strongest.verdict.kind, arguments, strongest.verdict.text, strongest.hook, decisions)


def decide_turn(hooks: Sequence[ActiveHook], context: HookContext) -> TurnDecision:
    """Call the hooks of any other event, and combine their verdicts: Stop > SystemMessage > AppendContext > Continue.

    The texts of the strongest kind are joined in the order of the hooks.
    """
    relevant = [each.hook for each in hooks if each.applies_to(context.event, context.tool_name)]
    decisions = [_call_hook(hook, context) for hook in relevant]
    strongest = _strongest(decisions, TURN_ORDER)
    if strongest is None or strongest.verdict.kind is VerdictKind.CONTINUE:
        return TurnDecision(VerdictKind.CONTINUE, decisions=decisions)
    kind = strongest.verdict.kind
    texts = [each.verdict.text for each in decisions if each.verdict.kind is kind]
    return TurnDecision(kind, "\n\n".join(texts), strongest.hook, decisions)


def _strongest(decisions: Sequence[HookDecision], order: Sequence[VerdictKind]) -> HookDecision | None:
    return min(decisions, key=lambda decision: order.index(decision.verdict.kind), default=None)


def _call_again(hook: Hook, context: HookContext) -> HookDecision:
    """Call a guard with the final arguments. If it would change them, it denies the call."""
    decision = _call_hook(hook, context)
    if decision.verdict.kind is not VerdictKind.MODIFY_ARGS or decision.diff is None:
        return decision
    text = "it changed arguments that another hook had changed"
    return replace(decision, verdict=Verdict.deny(text), diff=None)


def _call_hook(hook: Hook, context: HookContext) -> HookDecision:
    """Call a hook in a separate thread, within its time limit. A failed hook gets the verdict of `_fallback`."""
    began = time.perf_counter()
    limit_s, call = settings.AGENTOPS_HOOK_TIMEOUT_S, TrackedCall(f"hook:{hook.name}")
    try:
        if too_many(f"hook:{hook.name}"):
            raise RuntimeError(f"{MAX_OVERDUE} earlier calls have not returned")
        value = call_within(limit_s, partial(_decide, hook, _copy(context), call), name=f"hook-{hook.name}")
        verdict, fault = _checked(hook, context.event, value)
    except DeadlineExceeded:
        call.give_up()
        verdict, fault = None, f"no verdict within {limit_s:g} s"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit in a hook must not end the worker
        verdict, fault = None, f"raised {type(error).__name__}: {_text_of(error)}"
    duration_ms = round((time.perf_counter() - began) * 1000)
    if verdict is None:
        log.warning("hook %s failed: %s", hook.name, fault, extra={"run_id": context.run_id})
        return HookDecision(hook.name, context.event, _fallback(hook, context.event, fault), duration_ms, failed=True)
    diff = None if verdict.arguments is None else argument_diff(context.arguments, verdict.arguments)
    if verdict.arguments is not None and not diff:
        # Arguments that equal the given ones are no change.
        verdict, diff = Verdict.allow(), None
    return HookDecision(hook.name, context.event, verdict, duration_ms, diff=diff)


def _copy(context: HookContext) -> HookContext:
    """Return a copy whose values a hook can change without changing anything else."""
    mutable = {name: copy.deepcopy(getattr(context, name)) for name in ("arguments", "settings", "output")}
    return replace(context, **mutable)


def _decide(hook: Hook, context: HookContext, call: TrackedCall) -> object:
    """Call the hook. Runs in the thread of the hook."""
    try:
        return hook.decide(context)
    finally:
        connections.close_all()  # connections that the hook opened in this thread
        call.end()


def _checked(hook: Hook, event: HookEvent, value: object) -> tuple[Verdict | None, str]:
    """Return the verdict, or None and the fault of the value that the hook returned."""
    order = CALL_ORDER if event is HookEvent.PRE_TOOL_USE else TURN_ORDER
    if value is None:
        return Verdict(order[-1]), ""
    if not isinstance(value, Verdict) or value.kind not in order or not isinstance(value.text, str):
        return None, f"returned an invalid verdict: {_text_of(value)}"
    if value.kind in OF_GUARDS and not hook.guard:
        return None, f"returned {value.kind}, which only a guard may"
    if (value.kind is VerdictKind.MODIFY_ARGS) != (value.arguments is not None):
        return None, "returned arguments without modify_args, or modify_args without arguments"
    if value.arguments is not None and not _is_json_object(value.arguments):
        return None, "returned arguments that are not a JSON object"
    is_message = value.kind in (VerdictKind.SYSTEM_MESSAGE, VerdictKind.APPEND_CONTEXT)
    if is_message and not value.text.strip():
        return None, "returned an empty message"
    return replace(value, text=value.text[: MAX_MESSAGE if is_message else MAX_REASON]), ""


def _fallback(hook: Hook, event: HookEvent, fault: str) -> Verdict:
    """Return the verdict for a hook that failed: a guard denies the call or stops the run, an observer does nothing."""
    if event is HookEvent.PRE_TOOL_USE:
        return Verdict(VerdictKind.DENY if hook.guard else VerdictKind.ALLOW, fault)
    return Verdict(VerdictKind.STOP if hook.guard else VerdictKind.CONTINUE, fault)


def _is_json_object(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    try:
        return argument_diff({}, value) is not None
    except (ValueError, TypeError, RecursionError):
        return False


def _text_of(value: object) -> str:
    try:
        return str(value)[:200]
    except BaseException:
        return type(value).__name__
