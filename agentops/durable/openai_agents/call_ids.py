"""New IDs for calls without one of their own: the step that executes a call is known by the ID of the call.

Models of OpenAI give each call an ID. Some gateways begin anew with `call_0` in each answer, or give none.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from agents import ModelResponse
from pydantic import BaseModel

#: Maximum characters of a new ID: the Chat Completions API refuses longer ones.
_MAX_ID = 40


def with_own_ids(response: ModelResponse, taken: Iterable[str]) -> ModelResponse:
    """Return a response in which each call of a function has an ID that is not `taken`, and not of an earlier call."""
    known = set(taken)
    changed = copy.copy(response)
    changed.output = [_with_own_id(item, known) for item in response.output]
    return changed


def ids_in(items: Any) -> set[str]:
    """Return the IDs of the calls in the input of a model."""
    if not isinstance(items, list):
        return set()
    return {str(call_id) for item in items if (call_id := _member(item, "call_id"))}


def _with_own_id(item: Any, known: set[str]) -> Any:
    """Return an output item; a call of a function with an ID that is not `known` yet. Adds the ID."""
    if _member(item, "type") != "function_call":
        return item
    given = _member(item, "call_id")
    if given and given not in known:
        known.add(given)
        return item
    digits = uuid.uuid4().hex[:8]
    call_id = f"{(given or _member(item, 'name') or 'call')[: _MAX_ID - 9]}-{digits}"
    known.add(call_id)
    if isinstance(item, BaseModel):
        return item.model_copy(update={"call_id": call_id})
    return {**item, "call_id": call_id}


def _member(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)
