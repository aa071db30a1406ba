"""Values of steps as JSON texts, and codecs that encode these texts so that the site cannot read them."""

from __future__ import annotations

import json
from typing import Any

from agentops.durable.errors import UNSTORABLE, UnstorableValue


class Codec:
    """Encodes the values of steps before they leave the process. Derive from it, and override the methods you need.

    The site stores the encoded text with `name`, a class attribute, and shows only that the value is sealed. `encode`
    and `decode` may encrypt. `dumps` and `loads` may support more types than JSON.
    """

    #: Stored with each value: 1 to 63 characters. Decode values of an older form under the same name.
    name: str = ""

    def encode(self, text: str) -> str:
        """Return the text that the site stores."""
        return text

    def decode(self, text: str) -> str:
        """Return the text that was encoded."""
        return text

    def dumps(self, value: Any) -> str:
        """Return a value as text. Raises `TypeError` or `ValueError` for a value that has no such form."""
        return dump_json(value)

    def loads(self, text: str) -> Any:
        """Return the value of a text."""
        return json.loads(text)


def dump_json(value: Any) -> str:
    """Return compact JSON that is valid UTF-8. Raises `TypeError` or `ValueError` for a value that is not JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Surrogate pairs become characters; lone surrogates, which UTF-8 does not have, U+FFFD.
    return text if _is_utf8(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Values:
    """Converts the values of steps to stored texts, and back."""

    def __init__(self, codec: Codec | None = None) -> None:
        if codec is not None and not 1 <= len(codec.name) <= 63:
            raise ValueError(f"the name {codec.name!r} of the codec must have 1 to 63 characters")
        self.codec = codec

    @property
    def codec_name(self) -> str:
        """The name under which new values are stored; empty for plain JSON."""
        return self.codec.name if self.codec is not None else ""

    def encode(self, step: str, value: Any) -> str:
        """Return the text to store: JSON, or the text of the codec. Raises `UnstorableValue` with the step's name."""
        try:
            text = dump_json(value) if self.codec is None else self.codec.encode(self.codec.dumps(value))
            text.encode()
            return text
        except (TypeError, ValueError, RecursionError) as error:
            problem = f"it returned a {type(value).__name__}, which is not JSON: {error}. Return JSON, or use a codec"
            raise UnstorableValue(step, UNSTORABLE, problem) from error

    def decode(self, step: str, stored: Any, codec_name: str) -> Any:
        """Return the value that was stored: JSON that is parsed already, or the text of a codec."""
        if not codec_name:
            return stored
        return self._codec_of(step, codec_name).loads(self._codec_of(step, codec_name).decode(stored))

    def decode_text(self, step: str, text: str, codec_name: str) -> Any:
        """Return the value of a text that `encode` returned, in this or another process."""
        return self.decode(step, text if codec_name else json.loads(text), codec_name)

    def _codec_of(self, step: str, name: str) -> Codec:
        if self.codec is None or self.codec.name != name:
            raise LookupError(f"the value of step {step!r} was stored with the codec {name!r}: give it to serve()")
        return self.codec
