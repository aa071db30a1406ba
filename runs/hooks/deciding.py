"""Calls the hooks of an event, each within its time limit, and combines their verdicts into one decision."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from django.conf import settings
from django.db import connections

from agentops.base.http.deadline import MAX_OVERDUE, DeadlineExceeded, OverdueCall, call_within, too_many
from agentops.base.limits.patterns import Pattern
from runs.hooks.argument_diffs import argument_diff
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

log = logging.getLogger(__name__)
Arguments = Mapping[str, JSON] | str


@dataclass(frozen=True)
class ActiveHook:
    """A hook of an agent, and the tools that it applies to. Without a pattern: all tools."""

    hook: Hook
    tools: Pattern | None = None

    def is_about(self, event: HookEvent, tool_name: str = "") -> bool:
        """Return whether to call the hook at an event, for a call of this tool."""
        return event in self.hook.events and (self.tools is None or not tool_name or self.tools.matches(tool_name))


@dataclass(frozen=True)
class HookDecision:
    """The verdict of one hook. `failed`: the hook returned none, and its kind determines the verdict."""

    hook: str
    event: HookEvent
    verdict: Verdict
    duration_ms: int
    failed: bool = False
    #: The changed arguments: name → {"from": …, "to": …}.
    diff: dict[str, JSON] | None = None


@dataclass(frozen=True)
class CallDecision:
    """The decision about a tool call: deny, ask or allow, with the arguments to use."""

    kind: VerdictKind
    arguments: Arguments
    reason: str = ""
    #: The hook that decided; empty if none objected.
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
    """Combine the verdicts before a tool call: Deny > Ask > ModifyArgs > Allow, independent of the order of the hooks.

    Each hook sees the arguments as changed by the hooks before it. If a guard saw other arguments than the final
    ones, it is called again, and cannot change them any more.
    """
    relevant = [each.hook for each in hooks if each.is_about(context.event, context.tool_name)]
    arguments, seen, decisions = context.arguments, dict[int, Arguments](), list[HookDecision]()
    for position, hook in enumerate(relevant):
        seen[position] = arguments
        decision = _ask(hook, replace(context, arguments=arguments))
        decisions.append(decision)
        if decision.verdict.kind is VerdictKind.MODIFY_ARGS and decision.verdict.arguments is not None:
            arguments = dict(decision.verdict.arguments)
    for position, hook in enumerate(relevant):
        changed_itself = decisions[position].verdict.arguments == arguments
        if hook.guard and seen[position] != arguments and not changed_itself:
            decisions.append(_ask_again(hook, replace(context, arguments=arguments)))
    strongest = _strongest(decisions, CALL_ORDER)
    if strongest is None or strongest.verdict.kind in (VerdictKind.ALLOW, VerdictKind.MODIFY_ARGS):
        return CallDecision(VerdictKind.ALLOW, arguments, decisions=decisions)
    return CallDecision(strongest.verdict.kind, arguments, strongest.verdict.text, strongest.hook, decisions)


def decide_turn(hooks: Sequence[ActiveHook], context: HookContext) -> TurnDecision:
    """Combine the verdicts of any other event: Stop > SystemMessage > AppendContext > Continue.

    Messages of the strongest kind are joined in the order of the hooks.
    """
    relevant = [each.hook for each in hooks if each.is_about(context.event, context.tool_name)]
    decisions = [_ask(hook, context) for hook in relevant]
    strongest = _strongest(decisions, TURN_ORDER)
    if strongest is None or strongest.verdict.kind is VerdictKind.CONTINUE:
        return TurnDecision(VerdictKind.CONTINUE, decisions=decisions)
    kind = strongest.verdict.kind
    texts = [each.verdict.text for each in decisions if each.verdict.kind is kind]
    return TurnDecision(kind, "\n\n".join(texts), strongest.hook, decisions)


def _strongest(decisions: Sequence[HookDecision], order: Sequence[VerdictKind]) -> HookDecision | None:
    return min(decisions, key=lambda decision: order.index(decision.verdict.kind), default=None)


def _ask_again(hook: Hook, context: HookContext) -> HookDecision:
    decision = _ask(hook, context)
    if decision.verdict.kind is not VerdictKind.MODIFY_ARGS or decision.diff is None:
        return decision
    text = "it changed arguments that another hook had changed"
    return replace(decision, verdict=Verdict.deny(text), diff=None)


def _ask(hook: Hook, context: HookContext) -> HookDecision:
    """Call a hook on a separate thread. Always returns a decision, also if the hook fails."""
    began = time.perf_counter()
    limit_s, call = settings.AGENTOPS_HOOK_TIMEOUT_S, OverdueCall(f"hook:{hook.name}")
    try:
        if too_many(f"hook:{hook.name}"):
            raise RuntimeError(f"{MAX_OVERDUE} earlier calls have not returned")
        value = call_within(limit_s, partial(_call, hook, _copy(context), call), name=f"hook-{hook.name}")
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
        verdict, diff = Verdict.allow(), None
    return HookDecision(hook.name, context.event, verdict, duration_ms, diff=diff)


def _copy(context: HookContext) -> HookContext:
    """Return a copy that a hook can change without changing anything else."""
    mutable = {name: copy.deepcopy(getattr(context, name)) for name in ("arguments", "settings", "output")}
    return replace(context, **mutable)


def _call(hook: Hook, context: HookContext, call: OverdueCall) -> object:
    try:
        return hook.decide(context)
    finally:
        connections.close_all()  # connections that the hook opened in this thread
        call.end()


def _checked(hook: Hook, event: HookEvent, value: object) -> tuple[Verdict | None, str]:
    """Return the verdict, or None and the fault of an invalid one."""
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
    """Return the verdict of a hook that failed: a guard denies or stops, an observer changes nothing."""
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
