"""Signals changed permissions, so that open streams are checked at once.

Based on model signals, so it covers pages, API, administration, command line and cascades. QuerySet.update() of users
or sessions sends no signal; the periodic check of open streams (timeline.live.access_watch) covers it.
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
from agentops.base.database.after_commit import after_commit

#: Sent after the commit with `holder`: see access.holder_of_key and access.holder_of_user.
rights_changed = Signal()
#: Columns that do not affect permissions.
UNRELATED_COLUMNS = frozenset({"last_login", "last_used_at"})


def announce(holder: str) -> None:
    """Send `rights_changed` after the commit of the current transaction."""
    after_commit(_send, holder)


def _send(holder: str) -> None:
    rights_changed.send_robust(sender=None, holder=holder)


def _key_deleted(instance: ApiKey, **_: Any) -> None:
    announce(holder_of_key(instance.pk))


def _key_saved(instance: ApiKey, *, created: bool, update_fields: Iterable[str] | None = None, **_: Any) -> None:
    if not created and not _is_unrelated(update_fields):
        announce(holder_of_key(instance.pk))


def _keys_updated(ids: Iterable[Any], **_: Any) -> None:
    for key_id in ids:
        announce(holder_of_key(key_id))


def _member_deleted(instance: Membership, **_: Any) -> None:
    announce(holder_of_user(instance.user_id))


def _member_saved(instance: Membership, *, created: bool, **_: Any) -> None:
    if not created:
        announce(holder_of_user(instance.user_id))


def _members_updated(ids: Iterable[Any], **_: Any) -> None:
    for user_id in set(ids):
        announce(holder_of_user(user_id))


def _person_deleted(instance: Any, **_: Any) -> None:
    announce(holder_of_user(instance.pk))


def _person_saved(instance: Any, *, created: bool, update_fields: Iterable[str] | None = None, **_: Any) -> None:
    """Announce a deactivated or demoted user, or a changed password."""
    if not created and not _is_unrelated(update_fields):
        announce(holder_of_user(instance.pk))


def _session_deleted(instance: Session, **_: Any) -> None:
    """Announce the end of a session, unless it had expired."""
    if instance.expire_date <= database_clock.now():
        return
    user_id = instance.get_decoded().get(SESSION_KEY)
    if user_id is not None:
        announce(holder_of_user(user_id))


def _is_unrelated(update_fields: Iterable[str] | None) -> bool:
    return update_fields is not None and UNRELATED_COLUMNS.issuperset(update_fields)


def watch_rows() -> None:
    """Connect the signal receivers. Called once at startup."""
    people = get_user_model()
    for signal, model, receiver in (
        (post_save, ApiKey, _key_saved),
        (post_delete, ApiKey, _key_deleted),
        (post_save, Membership, _member_saved),
        (post_delete, Membership, _member_deleted),
        (post_save, people, _person_saved),
        (post_delete, people, _person_deleted),
        (post_delete, Session, _session_deleted),
    ):
        signal.connect(receiver, sender=model, dispatch_uid=f"agentops.revocation.{receiver.__name__}")
    keys_changed.connect(_keys_updated, dispatch_uid="agentops.revocation.keys")
    memberships_changed.connect(_members_updated, dispatch_uid="agentops.revocation.members")
