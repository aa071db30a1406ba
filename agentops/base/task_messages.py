"""The messages of Celery's queues: the check of messages from Redis, and the messages that wait in the broker.

A client that can write to Redis can put any message into a queue. Celery and kombu trust messages: a malformed message
ends a worker; others stop it, change its configuration, or make it run further tasks. So each message is checked here,
and a new one is built from the accepted values. A message that no process of the site would write is refused.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

from django.utils.module_loading import import_string
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter

from agentops.base.backing_services import PRIORITIES

#: Commands of `celery inspect` that neither change a worker nor show its settings, unlike `conf` and `report`.
INSPECTIONS = (
    *("active", "active_queues", "clock", "ping", "query_task"),
    *("registered", "reserved", "revoked", "scheduled", "stats"),
)
#: The maximum of an integer column in the database. Epochs of runs are large: after a restore, seconds since 2020.
MAX_INTEGER = 2**31 - 1


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
#: The ID of a task, which `celery revoke` names.
MessageId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]+$", max_length=64)]
#: The text that monitors show instead of the task's name.
Shadow = Annotated[str, StringConstraints(pattern=r"^[a-z_.]+( [a-z0-9-]+)?$", max_length=200)]
Time = Annotated[str, StringConstraints(max_length=40), AfterValidator(_is_time)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class _Headers(_Strict):
    task: TaskName
    id: MessageId
    shadow: Shadow | None = None
    eta: Time | None = None
    expires: Time | None = None


class _Properties(_Strict):
    body_encoding: Literal["base64"]
    priority: Annotated[int, Field(ge=min(PRIORITIES), le=max(PRIORITIES))] = max(PRIORITIES)


class _RawMessage(_Strict):
    body: Annotated[str, StringConstraints(max_length=10_000)]
    properties: _Properties
    content_type: Literal["application/json"] = Field(alias="content-type")
    content_encoding: Literal["utf-8"] = Field(alias="content-encoding")


class _Task(_RawMessage):
    headers: _Headers


class _ReplyTo(_Strict):
    exchange: Short
    routing_key: Short


class _Command(_Strict):
    method: Short
    arguments: dict[Short, bool | list[Short] | None] | None = None
    destination: list[Short] | None = None
    ticket: Short | None = None
    reply_to: _ReplyTo | None = None


#: The arguments, the keyword arguments, and Celery's follow-up tasks, which are dropped.
_Body = tuple[list[str], dict[Short, Annotated[int, Field(ge=0, le=MAX_INTEGER)]], Any]
_BODY: TypeAdapter[_Body] = TypeAdapter(_Body)


def checked_task(message: Any, queue: str) -> dict[str, Any]:
    """Return a new message with the task, arguments, times and priority of a message from `queue`.

    Raises `ValueError` unless a process of the site could have written the message.
    """
    task = _Task.model_validate(message)
    # Not strict, because JSON has no tuples.
    args, kwargs, _ = _BODY.validate_python(_json(task.body), strict=False)
    if len(args) > 1:
        raise ValueError("a task has at most one argument")
    ids = [str(UUID(arg)) for arg in args]
    afterwards = dict.fromkeys(("callbacks", "errbacks", "chain", "chord"))
    headers = {"lang": "py", **task.headers.model_dump(), "argsrepr": repr(tuple(ids)), "kwargsrepr": repr(kwargs)}
    return _written([ids, kwargs, afterwards], headers, queue=queue, priority=task.properties.priority)


def checked_command(message: Any) -> dict[str, Any]:
    """Return a new message with the command of a message. Raises `ValueError` unless the command only inspects."""
    command = _Command.model_validate(_json(_RawMessage.model_validate(message).body))
    if command.method not in INSPECTIONS:
        raise ValueError(f"remote control may only inspect, not {command.method!r} (AGENTOPS_CELERY_CONTROL)")
    return _written(command.model_dump(), {}, queue="", priority=max(PRIORITIES))


def run_ids_in(messages: Iterable[Any]) -> list[UUID]:
    """Return the run IDs in messages, in order. Messages without a run ID are skipped."""
    ids = []
    for message in messages:
        try:
            [[run_id], *_] = _json(message["body"])
            ids.append(UUID(run_id))
        except (ValueError, TypeError, LookupError, AttributeError):
            continue
    return ids


def _json(body: str) -> Any:
    return json.loads(base64.b64decode(body, validate=True))


def _written(body: Any, headers: dict[str, Any], *, queue: str, priority: int) -> dict[str, Any]:
    """Return a message in the form in which Celery and kombu write it."""
    return {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers,
        "properties": {
            "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": queue},
            "delivery_tag": str(uuid4()),
            "priority": priority,
        },
    }


#: Loaded on demand: importing Celery takes half a second.
CELERY_APP = "agentops.celery.app"


def oldest(queue: str, priority: int, number: int) -> list[UUID]:
    """Return the run IDs in the first `number` messages of a queue and priority, in order."""
    with _channel() as channel:
        return run_ids_in(channel.oldest(queue, priority, number))


def lengths(queue: str) -> dict[int, int]:
    """Return the number of messages in a queue by priority."""
    with _channel() as channel:
        counts: dict[int, int] = channel.counts(queue)
    return counts


@contextmanager
def _channel() -> Iterator[Any]:
    with import_string(CELERY_APP).pool.acquire(block=True) as connection:
        yield connection.default_channel
