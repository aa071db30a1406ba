"""Interrupts of graphs as approvals and questions of the run, and people's decisions as the values that resume them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.types import Interrupt

from agentops.durable.answers import Decision
from agentops.durable.langgraph.encoding import as_text
from agentops.durable.run import DurableRun

#: The answers of the middleware of LangChain for a person, by the type of the decision.
_ALL = ("approve", "edit", "reject", "respond")


async def answer(run: DurableRun, interrupt: Interrupt) -> Any:
    """Ask a person about an interrupt, and return the value that resumes it. The run waits until then.

    - A request of LangChain's `HumanInTheLoopMiddleware` is one approval for each action.
    - `{"approval": name, "payload": …}` is an approval. Its value is `{"approved", "by", "message", "payload"}`.
    - `{"question": text, "choices": […]}` is a question, and so is a text. Its value is the text of the answer.
    - Anything else is a question that shows it as JSON. An answer that is JSON is parsed.
    """
    value = interrupt.value
    if not isinstance(value, Mapping):
        is_text = isinstance(value, str)
        return await _ask(run, value if is_text else _as_json(value), parses=not is_text or _has_schema(interrupt))
    if isinstance(value.get("action_requests"), Sequence) and "review_configs" in value:
        return {"decisions": await _review(run, value["action_requests"], value["review_configs"])}
    if value.get("type") == "tool_approval" and "name" in value:
        allowed = _allowed_by(getattr(interrupt, "response_schema", None))
        return await _decide(run, str(value["name"]), value.get("args") or {}, str(value.get("description")), allowed)
    if isinstance(name := value.get("approval"), str):
        payload = as_text(value.get("payload"))
        decision = await run.approve(name, payload)
        return {
            "approved": decision.approved,
            "by": decision.by,
            "message": decision.message,
            "payload": payload if decision.payload is None else decision.payload,
        }
    if isinstance(question := value.get("question"), str):
        return await run.ask(question, [str(choice) for choice in value.get("choices") or ()])
    return await _ask(run, _as_json(value), parses=True)


async def _ask(run: DurableRun, question: str, *, parses: bool) -> Any:
    text = await run.ask(question)
    try:
        return json.loads(text) if parses else text
    except ValueError:
        return text


def _as_json(value: Any) -> str:
    return json.dumps(as_text(value), ensure_ascii=False, indent=2)


def _has_schema(interrupt: Interrupt) -> bool:
    return getattr(interrupt, "response_schema", None) is not None


# --- The middleware of LangChain ---


async def _review(
    run: DurableRun, actions: Sequence[Mapping[str, Any]], configs: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return one decision for each action, in order."""
    allowed = {config["action_name"]: tuple(config.get("allowed_decisions") or _ALL) for config in configs}
    return [
        await _decide(
            run,
            action["name"],
            action.get("args") or {},
            str(action.get("description") or ""),
            allowed.get(action["name"], _ALL),
        )
        for action in actions
    ]


async def _decide(
    run: DurableRun, name: str, arguments: Mapping[str, Any], description: str, allowed: Sequence[str]
) -> dict[str, Any]:
    if set(allowed) == {"respond"}:
        return {"type": "respond", "message": await run.ask(description or f"{name}: {_as_json(arguments)}")}
    payload = as_text(arguments)
    decision = await run.approve(name, payload)
    if not decision:
        return _refusal(decision, allowed)
    if decision.payload is None or decision.payload == payload:
        return {"type": "approve"}
    return {"type": "edit", "edited_action": {"name": name, "args": decision.payload}}


def _refusal(decision: Decision, allowed: Sequence[str]) -> dict[str, Any]:
    kind = "reject" if "reject" in allowed or "respond" not in allowed else "respond"
    message = {"message": decision.message} if decision.message or kind == "respond" else {}
    return {"type": kind, **message}


def _allowed_by(schema: Any) -> tuple[str, ...]:
    """Return the types of decisions that a response schema lists."""
    text = json.dumps(schema, default=str)
    return tuple(kind for kind in _ALL if f'"{kind}"' in text) or _ALL
