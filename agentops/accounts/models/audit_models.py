"""The audit log, and the incarnations of the database."""

from __future__ import annotations

from typing import Any, NoReturn

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models import Max
from uuid_utils.compat import uuid7

from agentops.accounts.models.project_models import Project
from agentops.base.database_clock import StampField


class AuditEntryAltered(TypeError):
    """Code tried to change or delete an audit entry."""


class Door(models.TextChoices):
    """Where a change was requested."""

    PAGE = "page"
    API = "api", "API"
    ADMIN = "admin", "administration"
    COMMAND = "command", "command line"
    #: A link in an e-mail.
    LINK = "link", "e-mailed link"
    #: A worker, or not known.
    SYSTEM = "", "the site itself"


class AuditEntryQuerySet(models.QuerySet["AuditEntry"]):
    """Audit entries, which cannot be changed."""

    def update(self, **kwargs: Any) -> NoReturn:
        """Raise AuditEntryAltered."""
        raise AuditEntryAltered("audit entries are never altered")

    def delete(self) -> NoReturn:
        """Raise AuditEntryAltered."""
        raise AuditEntryAltered("audit entries are never deleted")


class AuditEntry(models.Model):
    """An entry of the audit log, written in the transaction of the change. It cannot be changed or deleted."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    #: SET_NULL: entries are kept when their project is deleted.
    project = models.ForeignKey(Project, models.SET_NULL, null=True, related_name="audit_entries")
    #: "user:<name>", "key:<prefix>" or "system".
    actor = models.CharField(max_length=200)
    #: Where it was requested.
    door = models.CharField(max_length=8, choices=Door.choices, blank=True, default="", db_default="")
    ip = models.GenericIPAddressField(null=True)
    action = models.CharField(max_length=64)
    object_type = models.CharField(max_length=64, blank=True)
    object_id = models.CharField(max_length=128, blank=True)
    before = models.JSONField(null=True, encoder=DjangoJSONEncoder)
    after = models.JSONField(null=True, encoder=DjangoJSONEncoder)
    created_at = StampField(auto_now_add=True)

    objects = AuditEntryQuerySet.as_manager()

    class Meta:
        indexes = [
            # The audit log of a project, newest first.
            models.Index(fields=["project", "-created_at"], name="audit_of_project"),
            # The same for one actor, and for one action.
            models.Index(fields=["project", "actor", "-created_at"], name="audit_of_actor"),
            models.Index(fields=["project", "action", "-created_at"], name="audit_of_action"),
        ]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.object_id}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Insert the entry. Raise AuditEntryAltered for an existing one."""
        if not self._state.adding:
            raise AuditEntryAltered("audit entries are never altered")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise AuditEntryAltered."""
        raise AuditEntryAltered("audit entries are never deleted")


class Incarnation(models.Model):
    """An incarnation of the database, created by `agentops post_restore` after a backup was restored.

    Cursors of readers and epochs of workers from before the restore belong to an earlier incarnation, and are rejected.
    """

    #: The lowest epoch after this restore, derived from the time, so that two restores of one backup differ.
    number = models.PositiveIntegerField(primary_key=True)
    made_by = models.CharField(max_length=200)
    begun_at = StampField(auto_now_add=True)
    #: When all runs were fenced from earlier workers; null if the restore was interrupted and must be repeated.
    finished_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return str(self.number)


def current_incarnation() -> int:
    """Return the current incarnation. Not cached: a restore may happen while the process runs."""
    return Incarnation.objects.aggregate(newest=Max("number"))["newest"] or 0
