"""Signals changed permissions, so that open streams are checked at once.

This is based on signals of models, which pages, the API, the administration, commands and cascades send. Only a
QuerySet.update() of users or sessions sends none: the periodic check of open streams (timeline.live.access_watch)
detects such a change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib.auth import SESSION_KEY, get_user_model
from django.contrib.sessions.models import Session
from django.db.models.signals import post_delete, post_save
from django.dispatch import Signal

from agentops.accounts.access import holder_of_key, holder_of_user
from agentops.accounts.models import ApiKey, Membership, keys_changed, memberships_changed
from agentops.base import database_clock
from agentops.base.database.statements import after_commit

#: Sent after the commit, with the `holder` of the permissions (access.holder_of_key, access.holder_of_user).
rights_changed = Signal()
#: Columns that do not affect permissions.
UNRELATED_COLUMNS = frozenset({"last_login", "last_used_at"})


def announce(holder: str) -> None:
    """Send `rights_changed` after the commit of the current transaction."""
    after_commit(_send, holder)


def _send(holder: str) -> None:
    rights_changed.send_robust(sender=None, holder=holder)


def _holder_of(row: Any) -> str:
    """Return the holder of the permissions that an API key, a membership or a user gives."""
    if isinstance(row, ApiKey):
        return holder_of_key(row.pk)
    return holder_of_user(row.user_id if isinstance(row, Membership) else row.pk)


def _deleted(instance: Any, **_: Any) -> None:
    announce(_holder_of(instance))


def _saved(instance: Any, *, created: bool, update_fields: Iterable[str] | None = None, **_: Any) -> None:
    """Announce a changed row, for example of a demoted user, or one with a new password."""
    is_unrelated = update_fields is not None and UNRELATED_COLUMNS.issuperset(update_fields)
    if not created and not is_unrelated:
        announce(_holder_of(instance))


def _keys_updated(ids: Iterable[Any], **_: Any) -> None:
    for key_id in ids:
        announce(holder_of_key(key_id))


def _members_updated(ids: Iterable[Any], **_: Any) -> None:
    for user_id in set(ids):
        announce(holder_of_user(user_id))


def _session_deleted(instance: Session, **_: Any) -> None:
    """Announce the end of a session, unless it had expired."""
    if instance.expire_date <= database_clock.now():
        return
    user_id = instance.get_decoded().get(SESSION_KEY)
    if user_id is not None:
        announce(holder_of_user(user_id))


def watch_rows() -> None:
    """Connect the signal receivers. Called once at startup."""
    for model in (ApiKey, Membership, get_user_model()):
        post_save.connect(_saved, sender=model, dispatch_uid="agentops.revocation.saved")
        post_delete.connect(_deleted, sender=model, dispatch_uid="agentops.revocation.deleted")
    post_delete.connect(_session_deleted, sender=Session, dispatch_uid="agentops.revocation.session_deleted")
    keys_changed.connect(_keys_updated, dispatch_uid="agentops.revocation.keys")
    memberships_changed.connect(_members_updated, dispatch_uid="agentops.revocation.members")
