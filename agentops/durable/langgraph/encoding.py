"""The stored forms of a graph's values: Base64 of LangGraph's serializer, and JSON for messages and tool results."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from langchain_core.messages import BaseMessage, message_to_dict, messages_from_dict
from langgraph.checkpoint.serde.base import SerializerProtocol

from agentops.durable.codec import Codec

#: Values of at least this many bytes are compressed.
COMPRESSED = 512
#: The members under which `as_json` stores a message, another JSON value, or a value as text.
FORMS = frozenset({"message", "value", "state"})
#: Types of the serializer that are not stored, because reading them would execute code.
_REFUSED = frozenset({"pickle"})


class StateEncoding:
    """Converts values of a graph's state to ASCII texts that only the process can read, and back."""

    def __init__(self, serde: SerializerProtocol, codec: Codec | None = None) -> None:
        """Use a serializer of LangGraph. `codec`: encodes the texts once more, for example by encryption."""
        self.serde = serde
        self.codec = codec

    def dumps(self, value: Any) -> str:
        """Return a value as text. Raises `TypeError` for a value that only pickle can store."""
        kind, data = self.serde.dumps_typed(value)
        if kind in _REFUSED:
            raise TypeError(f"the state contains a {type(value).__name__}, which only pickle can store")
        if len(data) >= COMPRESSED and len(packed := zlib.compress(data, 3)) < len(data):
            kind, data = f"{kind}+zlib", packed
        text = f"{kind}:{base64.b64encode(data).decode()}"
        if self.codec is None:
            return text
        return f"!{self.codec.name}:{base64.b64encode(self.codec.encode(text).encode()).decode()}"

    def loads(self, text: str) -> Any:
        """Return the value of a text. Raises `LookupError` if it needs another codec."""
        if text.startswith("!"):
            name, _, sealed = text[1:].partition(":")
            if self.codec is None or self.codec.name != name:
                raise LookupError(f"the state was stored with the codec {name!r}: give it to the saver or to serve()")
            text = self.codec.decode(base64.b64decode(sealed).decode())
        kind, _, data = text.partition(":")
        raw = base64.b64decode(data)
        kind, _, packing = kind.partition("+")
        if kind in _REFUSED:
            raise TypeError("the stored state contains a pickle, which is not read")
        return self.serde.loads_typed((kind, zlib.decompress(raw) if packing else raw))

    def as_json(self, value: Any) -> dict[str, Any]:
        """Return a message or a result as JSON that people can read, or as text if JSON cannot store it exactly."""
        if isinstance(value, BaseMessage):
            document: dict[str, Any] = {"message": message_to_dict(value)}
        else:
            document = {"value": value}
        return document if _is_json(document) else {"state": self.dumps(value)}

    def from_json(self, document: dict[str, Any]) -> Any:
        """Return the value that `as_json` has converted."""
        if "message" in document:
            return messages_from_dict([document["message"]])[0]
        return self.loads(document["state"]) if "state" in document else document["value"]


def _is_json(document: dict[str, Any]) -> bool:
    """Return whether JSON stores a value without changing it."""
    try:
        return bool(json.loads(json.dumps(document, allow_nan=False)) == document)
    except (TypeError, ValueError, RecursionError):
        return False


def as_text(value: Any) -> Any:
    """Return a value as JSON for people: objects as their members, other values as texts."""
    if isinstance(value, BaseMessage):
        return {"type": value.type, "content": as_text(value.content)}
    if isinstance(value, dict):
        return {str(name): as_text(member) for name, member in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_text(member) for member in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if callable(dump := getattr(value, "model_dump", None)):
        return as_text(dump())
    return as_text(vars(value)) if hasattr(value, "__dict__") and not isinstance(value, type) else str(value)
