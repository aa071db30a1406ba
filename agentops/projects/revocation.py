"""Announces that somebody's rights may have ended, so that what they have open is checked at once.

The rows announce it themselves, whoever changes or deletes them: pages, API,
administration, command line, cascades. Only a QuerySet.update() of people or sessions goes unnoticed; the regular check
of open streams (timeline.live.access_watch) finds that.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from django.contrib.auth import SESSION_KEY, get_user_model
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.dispatch import Signal
from django.utils import timezone

from agentops.projects.access import key_holder, user_holder
from agentops.projects.models import ApiKey, Membership, keys_changed, memberships_changed

#: Sent after the commit with `holder`, as access.key_holder and access.user_holder name them.
rights_changed = Signal()
#: Columns that are written in passing and give or take no right.
HARMLESS = frozenset({"last_login", "last_used_at"})


def announce(holder: str) -> None:
    """Tell every listener once the surrounding transaction has committed; a rollback tells nobody."""
    transaction.on_commit(partial(_send, holder), robust=True)


def _send(holder: str) -> None:
    rights_changed.send_robust(sender=None, holder=holder)


def _key_gone(instance: ApiKey, **_: Any) -> None:
    announce(key_holder(instance.pk))


def _key_saved(instance: ApiKey, *, created: bool, update_fields: Iterable[str] | None = None, **_: Any) -> None:
    if not created and not _harmless(update_fields):
        announce(key_holder(instance.pk))


def _keys_updated(ids: Iterable[Any], **_: Any) -> None:
    for key_id in ids:
        announce(key_holder(key_id))


def _member_gone(instance: Membership, **_: Any) -> None:
    announce(user_holder(instance.user_id))


def _member_saved(instance: Membership, *, created: bool, **_: Any) -> None:
    if not created:
        announce(user_holder(instance.user_id))


def _members_updated(ids: Iterable[Any], **_: Any) -> None:
    for user_id in set(ids):
        announce(user_holder(user_id))


def _person_gone(instance: Any, **_: Any) -> None:
    announce(user_holder(instance.pk))


def _person_saved(instance: Any, *, created: bool, update_fields: Iterable[str] | None = None, **_: Any) -> None:
    """Switched off, demoted, or given another password, which ends their sessions."""
    if not created and not _harmless(update_fields):
        announce(user_holder(instance.pk))


def _session_gone(instance: Session, **_: Any) -> None:
    """Logged out, or ended by somebody. One that has expired was over before it was deleted."""
    if instance.expire_date <= timezone.now():
        return
    user_id = instance.get_decoded().get(SESSION_KEY)
    if user_id is not None:
        announce(user_holder(user_id))


def _harmless(update_fields: Iterable[str] | None) -> bool:
    return update_fields is not None and HARMLESS.issuperset(update_fields)


def watch_rows() -> None:
    """Connect the receivers; called once, when the apps are loaded."""
    people = get_user_model()
    for signal, model, receiver in (
        (post_save, ApiKey, _key_saved),
        (post_delete, ApiKey, _key_gone),
        (post_save, Membership, _member_saved),
        (post_delete, Membership, _member_gone),
        (post_save, people, _person_saved),
        (post_delete, people, _person_gone),
        (post_delete, Session, _session_gone),
    ):
        signal.connect(receiver, sender=model, dispatch_uid=f"agentops.revocation.{receiver.__name__}")
    keys_changed.connect(_keys_updated, dispatch_uid="agentops.revocation.keys")
    memberships_changed.connect(_members_updated, dispatch_uid="agentops.revocation.members")
