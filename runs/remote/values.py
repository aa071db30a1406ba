"""The values of steps: their JSON text in the journal, and what people see of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from agentops.base.redaction.json_values import is_suspect
from agentops.base.redaction.redact import BARE, MODEL_INPUT
from agentops.base.refusals import Invalid
from runs.models import RemoteStep, RemoteStepPiece
from runs.providers.messages import canonical, fits_a_column

#: Maximum bytes of the JSON text of a value in one request.
MAX_VALUE = 4 * 1024 * 1024
#: Maximum bytes of a piece of a larger value, and number of pieces.
MAX_PIECE = 1024 * 1024
MAX_PIECES = 256
#: Characters of a value or an input that pages show.
MAX_SHOWN = 64 * 1024


@dataclass(frozen=True)
class StoredValue:
    """A value as the journal stores it."""

    #: The JSON text, or the encoded text of a sealed value. None: the value is in pieces.
    text: str | None
    codec: str = ""
    pieces: int = 0
    #: Whether secrets were masked, so that the process must continue with the stored value.
    is_changed: bool = False


def inline(value: Any, codec: str) -> StoredValue:
    """Return a value that was sent with its request. Secrets are masked, unless the value is sealed.

    Raises `Invalid` if it is too large, or a sealed value is not text.
    """
    if codec:
        if not isinstance(value, str):
            raise Invalid("a sealed value must be a string", code="invalid_value", pointer="/value")
        _require_storable(value, "/value")
        return _checked(StoredValue(value, codec))
    text, redactor = _dumps(value), MODEL_INPUT.fixed()
    # First search the whole text once, as in transcript.new_row.
    if fits_a_column(text) and (redactor is BARE or not is_suspect(text, redactor)):
        return _checked(StoredValue(text))
    cleaned, changes = redactor.clean(value)
    return _checked(StoredValue(_dumps(cleaned), is_changed=bool(changes)))


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _require_storable(text: str, pointer: str) -> None:
    """Raise `Invalid` for a text that no column accepts, and that cannot be cleaned, because it is encoded."""
    try:
        text.encode()
        is_storable = "\0" not in text
    except UnicodeEncodeError:
        is_storable = False
    if not is_storable:
        raise Invalid("the text contains NUL or an unpaired surrogate", code="invalid_value", pointer=pointer)


def _checked(value: StoredValue) -> StoredValue:
    size = len((value.text or "").encode(errors="surrogatepass"))
    if size > MAX_VALUE:
        problem = f"the value has {size:,} bytes as JSON, of at most {MAX_VALUE:,}: send it in pieces"
        raise Invalid(problem, code="value_too_large", pointer="/value")
    return value


def add_piece(step: RemoteStep, index: int, text: str) -> None:
    """Store a piece of a large value. A repeated piece replaces the earlier one."""
    if len(text.encode(errors="surrogatepass")) > MAX_PIECE:
        raise Invalid(f"a piece must have at most {MAX_PIECE:,} bytes", code="value_too_large", pointer="/data")
    _require_storable(text, "/data")
    RemoteStepPiece.objects.update_or_create(step=step, index=index, defaults={"run": step.run, "text": text})


def in_pieces(step: RemoteStep, count: int, sha256: str, codec: str) -> StoredValue:
    """Return a value whose pieces are stored. Raises `Invalid` if one is missing, or the digest differs.

    Secrets in pieces cannot be masked one by one, so a value in pieces has to be sealed or free of secrets.
    """
    texts = list(
        RemoteStepPiece.objects.filter(step=step, index__lt=count).order_by("index").values_list("text", flat=True)
    )
    if len(texts) != count:
        raise Invalid(f"{len(texts)} of {count} pieces were sent", code="pieces_missing", pointer="/pieces")
    whole = "".join(texts)
    if hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest() != sha256.lower():
        raise Invalid("the digest of the joined pieces differs from sha256", code="digest_differs", pointer="/sha256")
    if not codec and MODEL_INPUT.clean_text(whole)[0] != whole:
        problem = "the value contains a secret: seal it with a codec, or leave the secret out"
        raise Invalid(problem, code="value_has_secret", pointer="/pieces")
    return StoredValue(None, codec, pieces=count)


def loaded(step: RemoteStep) -> Any:
    """Return the value of a step whose value is not in pieces: sealed values as their encoded text."""
    if step.value is None or step.codec:
        return step.value
    return json.loads(step.value)


def shown(value: Any, stored: StoredValue, text: str | None) -> str:
    """Return what people see of a value: the text that the process gives, else the value itself if it is readable."""
    if text is not None:
        return _cut(MODEL_INPUT.clean_text(text)[0])
    if stored.codec:
        return f"[sealed by {stored.codec}]"
    if stored.pieces:
        return f"[a value in {stored.pieces} pieces]"
    # Masked before it is cut: half a secret would not be recognised.
    return _cut(MODEL_INPUT.clean_text(value if isinstance(value, str) else canonical(value))[0])


def shown_input(value: Any) -> dict[str, Any]:
    """Return the input of a step as an object for pages: other values as its member `input`, long ones shortened."""
    arguments = value if isinstance(value, dict) else {} if value is None else {"input": value}
    text = canonical(arguments)
    return arguments if len(text) <= MAX_SHOWN else {"input": _cut(MODEL_INPUT.clean_text(text)[0])}


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… [{len(text) - MAX_SHOWN:,} more characters]"
