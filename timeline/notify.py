"""Change notifications to listeners in this process and, with Redis, in other processes.

Notifications are hints and may be lost: listeners read the database. There is a channel for each log (value: the last
sequence number), one for each project (value: the ID of a run that was created or whose status changed), and `access`
(value: the user or API key whose permissions changed, as named by agentops.accounts.access).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings

if TYPE_CHECKING:
    from timeline.redis_publisher import Publisher

logger = logging.getLogger(__name__)
#: Called with the name of the channel and the value, on the thread that committed.
Listener = Callable[[str, str], None]
#: The prefix of channel names in Redis, which may be shared.
PREFIX = "agentops:"
#: The channel for changed permissions. Every process with streams subscribes to it.
ACCESS = "access"

_listeners: list[Listener] = []


def log_channel(log_id: UUID) -> str:
    return f"log:{log_id}"


def project_channel(project_id: UUID) -> str:
    return f"project:{project_id}"


def subscribe(listener: Listener) -> Callable[[], None]:
    """Call `listener(channel, value)` for each notification of this process. Return a function that unsubscribes."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def notify_log(log_id: UUID, seq: int) -> None:
    """Notify that the last sequence number of a log is `seq`."""
    _publish(log_channel(log_id), str(seq), pending="")


def notify_project(project_id: UUID, run_id: UUID) -> None:
    """Notify that a run of a project was created or its status changed."""
    _publish(project_channel(project_id), str(run_id), pending=str(run_id))


def notify_access(holder: str, **_: Any) -> None:
    """Notify that the permissions of a user or API key changed, so that their streams are checked."""
    _publish(ACCESS, holder, pending=holder)


def _publish(channel: str, value: str, pending: str) -> None:
    """Call the listeners of this process, and publish to Redis from a separate thread.

    Of the waiting values with the same channel and the same key `pending`, only the highest is published.
    """
    for listener in tuple(_listeners):
        try:
            listener(channel, value)
        except Exception:
            # The other listeners and Redis must still be notified.
            logger.exception("a listener to changes failed")
    if settings.REDIS_URL:
        _publisher().publish_later((PREFIX + channel, pending), value)


_current: Publisher | None = None
_lock = threading.Lock()


def _publisher() -> Publisher:
    """Return the publisher of this process and REDIS_URL. A forked child creates its own: threads are not inherited."""
    from timeline.redis_publisher import Publisher

    global _current
    with _lock:
        if _current is None or (_current.pid, _current.url) != (os.getpid(), settings.REDIS_URL):
            _current = Publisher(settings.REDIS_URL)
        return _current
