"""The doorbell: tells listeners that something has changed. Only a hint: what is true stands in the tables.

A channel is one log (its value:
the newest seq), one project (its value: the id of a run that was created or changed its status), or `access` (its
value: the user or the key whose rights have changed, as agentops.projects.access names them).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings

if TYPE_CHECKING:
    from timeline.redis_publisher import Publisher

#: Called with a channel's name and its value, on the thread that committed.
Listener = Callable[[str, str], None]
#: Before a channel's name in Redis, which others may use too.
PREFIX = "agentops:"
#: The channel of rights that have changed: one for all, because every process with streams has to hear each.
ACCESS = "access"

_listeners: list[Listener] = []


def log_channel(log_id: UUID) -> str:
    return f"log:{log_id}"


def project_channel(project_id: UUID) -> str:
    return f"project:{project_id}"


def subscribe(listener: Listener) -> Callable[[], None]:
    """Call `listener(channel, value)` in this process for each ring; returns the way to stop."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def ring(log_id: UUID, seq: int) -> None:
    """A log has grown to `seq`."""
    _tell(log_channel(log_id), str(seq), pending=(log_channel(log_id), ""))


def ring_project(project_id: UUID, run_id: UUID) -> None:
    """A run of a project was created, or has another status: lists of runs want to know."""
    channel = project_channel(project_id)
    _tell(channel, str(run_id), pending=(channel, str(run_id)))


def ring_access(holder: str, **_: Any) -> None:
    """The rights of a user or key have changed: streams that they opened may have to end."""
    _tell(ACCESS, holder, pending=(ACCESS, holder))


def _tell(channel: str, value: str, pending: tuple[str, str]) -> None:
    """This process's listeners at once, other processes by Redis from a thread of its own."""
    for listener in tuple(_listeners):
        listener(channel, value)
    if settings.REDIS_URL:
        _publisher().put(pending, value)


_current: Publisher | None = None
_lock = threading.Lock()


def _publisher() -> Publisher:
    """The publisher of this process and of the Redis in its settings; a forked child has no thread of its parent's."""
    from timeline.redis_publisher import Publisher

    global _current
    with _lock:
        if _current is None or (_current.pid, _current.url) != (os.getpid(), settings.REDIS_URL):
            _current = Publisher(settings.REDIS_URL)
        return _current
