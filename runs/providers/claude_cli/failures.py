"""Failures of a session of the program, as errors that the engine classifies and policies match."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

#: Error types of API failures, by the names that the program uses.
NAMED = {
    "authentication_failed": "unauthorized",
    "billing_error": "out_of_credits",
    "rate_limit": "rate_limited",
    "invalid_request": "invalid_request",
    "server_error": "server_error",
}
#: Results that a further attempt would repeat.
FINAL = frozenset({"error_max_turns", "error_max_budget_usd"})
MAX_TEXT = 2_000


class SessionFailed(Exception):
    """The session has failed. `status`: the HTTP status of the model's API, if that has failed."""

    def __init__(self, error_type: str, message: str, *, status: int | None = None, details: str = "") -> None:
        super().__init__(message[:MAX_TEXT])
        self.error_type = error_type
        self.status = status
        self.details = details[-MAX_TEXT:]


class SessionMissing(SessionFailed):
    """The program does not know the session to resume."""


def of_result(result: Mapping[str, Any], named: str | None) -> SessionFailed | None:
    """Return the failure that a `result` message reports; None for a success. `named`: the error of the last answer.

    A failed call of the API is a success by its subtype, with `is_error` set.
    """
    subtype, status = str(result.get("subtype")), result.get("api_error_status")
    if subtype == "success" and result.get("is_error") is not True:
        return None
    texts = [text for text in result.get("errors") or [] if isinstance(text, str)]
    if not texts and isinstance(result.get("result"), str):
        texts = [result["result"]]
    message = "; ".join(text for text in texts if text) or f"the session ended with {subtype}"
    is_status = isinstance(status, int) and not isinstance(status, bool)
    if subtype == "success":
        return SessionFailed(NAMED.get(named or "", "api_error"), message, status=status if is_status else None)
    return SessionFailed(subtype[:64], message, status=status if is_status else None)


def of_exit(status: int, stderr: str) -> SessionFailed:
    """Return the failure of a program that has ended without a result. `status` is negative for a signal."""
    said = stderr.strip()
    if "No conversation found with session ID" in said:
        return SessionMissing("session_missing", said)
    if status < 0:
        return SessionFailed("session_killed", f"the program was ended by {_name(-status)}", details=said)
    how = f"the program exited with status {status}" if status else "the program ended"
    text = f"{how} without a result" + (f": {said.splitlines()[-1][:500]}" if said else "")
    return SessionFailed("session_ended", text, details=said)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
