"""Celery's connection to Redis. Messages are hints: one that no process of the site would write is dropped.

Who can write to Redis can put any message into the queue. Celery and kombu trust what they read: a malformed message
ends the worker, others stop it, change its configuration, or make it run further tasks. So each message is checked
here, and written again from the values that it may have.
"""

from __future__ import annotations

import base64
import json
import logging
from datetime import datetime
from queue import Empty
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

from django.conf import settings
from kombu.transport import redis
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter

log = logging.getLogger(__name__)
#: Commands of `celery inspect` that neither change a worker nor show its settings, as `conf` and `report` do.
INSPECTIONS = (
    *("active", "active_queues", "clock", "ping", "query_task"),
    *("registered", "reserved", "revoked", "scheduled", "stats"),
)
#: The ending of the queue of remote control that each worker has.
CONTROL = ".celery.pidbox"
#: What a malformed value raises in kombu. Errors of the connection are others.
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


def _is_time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


def _is_own_task(name: str) -> str:
    """Refuse the tasks that every Celery application has, such as groups and chords."""
    if name.startswith("celery."):
        raise ValueError("a task of Celery's own")
    return name


Short = Annotated[str, StringConstraints(max_length=200)]
TaskName = Annotated[
    str, StringConstraints(pattern=r"^[a-z_]+(\.[a-z_]+)+$", max_length=100), AfterValidator(_is_own_task)
]
Time = Annotated[str, StringConstraints(max_length=40), AfterValidator(_is_time)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class _HintHeaders(_Strict):
    task: TaskName
    expires: Time | None = None


class _Properties(_Strict):
    body_encoding: Literal["base64"]


class _RawMessage(_Strict):
    body: Annotated[str, StringConstraints(max_length=10_000)]
    properties: _Properties
    content_type: Literal["application/json"] = Field(alias="content-type")
    content_encoding: Literal["utf-8"] = Field(alias="content-encoding")


class _Hint(_RawMessage):
    headers: _HintHeaders


class _ReplyTo(_Strict):
    exchange: Short
    routing_key: Short


class _Command(_Strict):
    method: Short
    arguments: dict[Short, bool | list[Short] | None] | None = None
    destination: list[Short] | None = None
    ticket: Short | None = None
    reply_to: _ReplyTo | None = None


#: Arguments, keyword arguments, and what Celery would do afterwards, which is dropped.
_Body = tuple[list[str], dict[Short, Annotated[int, Field(ge=0, le=1000)]], Any]
_BODY: TypeAdapter[_Body] = TypeAdapter(_Body)


class Channel(redis.Channel):
    """kombu's channel, which survives values that are no messages."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except MALFORMED as error:
            _note_dropped(error)
            raise Empty from None

    def _receive_one(self, connection: Any) -> Any:
        try:
            return super()._receive_one(connection)  # type: ignore[no-untyped-call]
        except MALFORMED as error:
            _note_dropped(error)
            raise Empty from None


class Transport(redis.Transport):
    """kombu's transport, which passes on checked messages only."""

    Channel = Channel

    def _deliver(self, message: Any, queue: str) -> None:
        is_control = queue.endswith(CONTROL)
        # The answers to `celery inspect`. No worker reads their queue, whose name begins with the ID of the asker.
        is_answer = queue.endswith(f".reply{CONTROL}")
        if not is_answer and not (is_control and settings.AGENTOPS_CELERY_CONTROL):
            message = checked_command(message) if is_control else checked_hint(message)
        super()._deliver(message, queue)  # type: ignore[no-untyped-call]


def checked_hint(message: Any) -> dict[str, Any]:
    """Return a new message with the same task, run and expiry. Raise ValueError unless it is a hint."""
    hint = _Hint.model_validate(message)
    # Not strict, because JSON has no tuples.
    args, kwargs, _ = _BODY.validate_python(_json(hint.body), strict=False)
    if len(args) > 1:
        raise ValueError("a hint has at most one argument")
    run_ids = [str(UUID(arg)) for arg in args]
    afterwards = dict.fromkeys(("callbacks", "errbacks", "chain", "chord"))
    headers = {"lang": "py", "task": hint.headers.task, "id": str(uuid4()), "expires": hint.headers.expires}
    return _written([run_ids, kwargs, afterwards], headers)


def checked_command(message: Any) -> dict[str, Any]:
    """Return a new message with the same command. Raise ValueError unless it only inspects."""
    command = _Command.model_validate(_json(_RawMessage.model_validate(message).body))
    if command.method not in INSPECTIONS:
        raise ValueError(f"remote control may only inspect, not {command.method!r} (AGENTOPS_CELERY_CONTROL)")
    return _written(command.model_dump(), {})


def _json(body: str) -> Any:
    return json.loads(base64.b64decode(body, validate=True))


def _written(body: Any, headers: dict[str, Any]) -> dict[str, Any]:
    return {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers,
        "properties": {
            "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": ""},
            "delivery_tag": str(uuid4()),
        },
    }


def _note_dropped(error: Exception) -> None:
    """Log why a message was dropped, without its content: who wrote it may not be trusted with the log either."""
    log.warning("dropped a message from Redis that is no hint (%s)", type(error).__name__)
