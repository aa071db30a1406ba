"""The result of a model call of a durable function, and the results of steps that wait for a person or a run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Effect = Literal["read", "idempotent", "once"]
FinishReason = Literal["stop", "tool_call", "length", "content_filter", "error"]
#: Maximum characters of a call's ID that the site gets. Some gateways put whole signatures into IDs.
MAX_CALL_ID = 120


def shortened_id(call_id: str) -> str:
    """Return the ID of a call as the site gets it: the end of a long one is replaced by its digest."""
    if len(call_id) <= MAX_CALL_ID:
        return call_id
    digest = hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:32]
    return f"{call_id[: MAX_CALL_ID - 33]}~{digest}"


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call that a model requests. `DurableRun.tool` executes it."""

    #: The model's ID of the call.
    id: str
    #: The name of the tool.
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    #: The rule if the process dies in the call: repeat a `read` or `idempotent` call; ask a person about `once`.
    effect: Effect = "once"
    #: Whether a person must approve the call, unless an approval rule decides.
    needs_approval: bool = False


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The tokens of a model call. `input_tokens` include the cached ones."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of a model, as `DurableRun.model` stores and returns it."""

    text: str = ""
    thinking: str = ""
    calls: Sequence[Call] = ()
    #: The model that answered; by default, the name given to `DurableRun.model`.
    model: str = ""
    #: Such as `anthropic`; decides with the model about the price.
    provider: str = ""
    usage: Usage = Usage()
    #: US dollars as text, if the provider reports the cost. By default, the site computes it.
    cost_usd: str | None = None
    finish_reason: FinishReason | None = None
    #: The service tier that was billed.
    tier: str = ""
    #: Any JSON: the provider's own message, for example, to send it back with the next request.
    raw: Any = None

    def as_value(self) -> dict[str, Any]:
        """Return the answer as JSON for the journal."""
        return asdict(self) | {"calls": [asdict(call) for call in self.calls]}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Answer:
        """Return the answer that `as_value` returned as JSON."""
        calls = tuple(Call(**call) for call in value["calls"])
        return cls(**{**value, "calls": calls, "usage": Usage(**value["usage"])})

    def as_reported(self, model: str, *, is_sealed: bool) -> dict[str, Any]:
        """Return the answer as the site shows and counts it. `is_sealed`: without its texts."""
        report = {name: value for name, value in self.as_value().items() if name != "raw" and value is not None}
        report["calls"] = [{**call, "id": shortened_id(call["id"])} for call in report["calls"]]
        texts = {"text": "", "thinking": ""} if is_sealed else {}
        return report | {"model": self.model or model} | texts


@dataclass(frozen=True)
class Decision:
    """A person's decision about `DurableRun.approve`. True if it was approved."""

    approved: bool
    #: Who decided, such as `user:oscar`; empty if the time ran out.
    by: str = ""
    message: str = ""
    #: The payload as the person changed it; None if it was approved as it was.
    payload: Any = None

    def __bool__(self) -> bool:
        return self.approved


@dataclass(frozen=True)
class ChildRun:
    """A child run that has ended."""

    run_id: str
    #: completed, failed or stopped.
    status: str
    result: Any = None
    #: The error of a failed run.
    error: Any = None
