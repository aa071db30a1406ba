"""Projects, memberships, API keys, the audit trail, idempotency keys and notifications."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NoReturn

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.dispatch import Signal
from uuid_utils.compat import uuid7

from agentops.projects.names import NOT_A_UUID, SLUG

#: Sent by QuerySet.update(), which sends no post_save: `ids` of the keys, or of the members' users.
keys_changed, memberships_changed = Signal(), Signal()


class Project(models.Model):
    """The border that nothing crosses: every run, key and event belongs to one project."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    slug = models.CharField(max_length=63, unique=True, validators=[SLUG, NOT_A_UUID])
    name = models.CharField(max_length=200)
    #: Days a finished run is kept; null keeps it for ever.
    retention_days = models.PositiveIntegerField(null=True, blank=True, default=90)
    settings = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.slug


class Role(models.TextChoices):
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class MembershipQuerySet(models.QuerySet["Membership"]):
    def update(self, **kwargs: Any) -> int:
        user_ids = list(self.values_list("user_id", flat=True))
        changed = super().update(**kwargs)
        memberships_changed.send(sender=self.model, ids=user_ids)
        return changed

    update.alters_data = True  # type: ignore[attr-defined]


class Membership(models.Model):
    """A person's role in a project; read again for each request, so a change holds at once."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="memberships")
    # PROTECT: deleting a user must not take away a project's last admin, nor leave the audit trail a gap.
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="memberships")
    role = models.CharField(max_length=8, choices=Role.choices)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = MembershipQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "user"], name="membership_once"),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="membership_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} {self.role} of {self.project_id}"


class Scope(models.TextChoices):
    """What a key may do; scopes are not hierarchical: `write` does not include `ingest`."""

    INGEST = "ingest"
    READ = "read"
    WRITE = "write"
    #: See what is masked for everybody else, where it is asked for.
    SECRETS = "secrets"


class KeyState(models.TextChoices):
    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    def active(self, now: datetime) -> ApiKeyQuerySet:
        """Those that open a door at `now`; says in SQL what `ApiKey.state` says of one row."""
        unexpired = models.Q(expires_at=None) | models.Q(expires_at__gt=now)
        return self.filter(unexpired, revoked_at=None)

    def update(self, **kwargs: Any) -> int:
        if kwargs.keys() == {"last_used_at"}:  # written with every use of a key
            return super().update(**kwargs)
        # Read before: afterwards the rows may not pass the filter any more.
        ids = list(self.values_list("pk", flat=True))
        changed = super().update(**kwargs)
        keys_changed.send(sender=self.model, ids=ids)
        return changed

    update.alters_data = True  # type: ignore[attr-defined]


class ApiKey(models.Model):
    """A key of a project. Only the SHA-256 of its 256 random bits is stored."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=200)
    #: The part of the key that may be shown and by which it is looked up.
    prefix = models.CharField(max_length=32, unique=True)
    sha256 = models.BinaryField(max_length=32)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    #: To the minute only: see keys.authenticate.
    last_used_at = models.DateTimeField(null=True, blank=True)

    objects = ApiKeyQuerySet.as_manager()

    def __str__(self) -> str:
        return f"{self.prefix} {self.name}"

    def state(self, now: datetime) -> KeyState:
        if self.revoked_at is not None:
            return KeyState.REVOKED
        if self.expires_at is not None and self.expires_at <= now:
            return KeyState.EXPIRED
        return KeyState.ACTIVE


class AuditEntryAltered(TypeError):
    """Audit entries are written once: this is a mistake in the code, not something a caller did."""


class AuditEntryQuerySet(models.QuerySet["AuditEntry"]):
    def update(self, **kwargs: Any) -> NoReturn:
        raise AuditEntryAltered("audit entries are never altered")

    def delete(self) -> NoReturn:
        raise AuditEntryAltered("audit entries are never deleted")


class AuditEntry(models.Model):
    """One action of a person or key that changed something; written with the change, never altered."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    #: SET_NULL: the trail outlives what it speaks of.
    project = models.ForeignKey(Project, models.SET_NULL, null=True, related_name="audit_entries")
    #: "user:<name>", "key:<prefix>" or "system".
    actor = models.CharField(max_length=200)
    ip = models.GenericIPAddressField(null=True)
    action = models.CharField(max_length=64)
    object_type = models.CharField(max_length=64, blank=True)
    object_id = models.CharField(max_length=128, blank=True)
    before = models.JSONField(null=True, encoder=DjangoJSONEncoder)
    after = models.JSONField(null=True, encoder=DjangoJSONEncoder)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = AuditEntryQuerySet.as_manager()

    class Meta:
        indexes = [
            # The audit page of a project, newest first.
            models.Index(fields=["project", "-created_at"], name="audit_of_project"),
        ]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.object_id}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise AuditEntryAltered("audit entries are never altered")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AuditEntryAltered("audit entries are never deleted")


class IdempotencyKey(models.Model):
    """The answer that a caller's `Idempotency-Key` was given, so that a repeat gets it again and does nothing.

    Written in the transaction of what was done: where there is the one, there is the other.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="idempotency_keys", db_index=False)
    #: Kind and id of who asked: of two people with the same key neither sees the other's answer.
    caller = models.CharField(max_length=64)
    key = models.CharField(max_length=255)
    #: SHA-256 of what was asked: method, path and body.
    asked = models.BinaryField(max_length=32)
    status = models.PositiveSmallIntegerField()
    headers = models.JSONField(default=dict)
    #: As it was sent, to the byte.
    body = models.TextField()
    created_at = models.DateTimeField()

    class Meta:
        indexes = [
            # idempotency_keys.forget_old_keys: the oldest first.
            models.Index(fields=["created_at"], name="idempotency_oldest"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["project", "caller", "key"], name="idempotency_key_once"),
        ]

    def __str__(self) -> str:
        return f"{self.key} of {self.caller}"


class Notification(models.Model):
    """News of a project that somebody should see: in the inbox of each member, and by e-mail to those who operate.

    It names its run by number only, because this floor knows no runs; it goes with the run (runs/upkeep/retention.py).
    """

    class Kind(models.TextChoices):
        """The closed set; it grows with whoever has more to tell."""

        #: A policy, or an agent, wants a person to decide.
        ESCALATED = "escalated"
        #: A run has paused at something that only a person can mend.
        PAUSED = "paused"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="notifications", db_index=False)
    run_id = models.UUIDField(null=True)
    kind = models.CharField(max_length=32)
    #: One line.
    title = models.CharField(max_length=200)
    text = models.TextField(blank=True)
    created_at = models.DateTimeField()
    #: When the last of those who get mail had it; also where nobody has an address.
    emailed_at = models.DateTimeField(null=True)
    #: When it is due, or due again, to be mailed; null when it was, or when it is not tried any more.
    email_due_at = models.DateTimeField(null=True)
    #: How often it was taken up to be mailed; who takes it up is known by this number.
    email_attempts = models.PositiveSmallIntegerField(default=0)
    #: Why the last attempt did not reach everyone.
    email_error = models.CharField(max_length=500, blank=True)

    class Meta:
        indexes = [
            # The inbox, and the count of what is unread: ids have the order of time.
            models.Index(fields=["project", "-id"], name="notifications_newest"),
            # mailing.take_due.
            models.Index("email_due_at", name="notifications_due", condition=models.Q(email_due_at__isnull=False)),
            # notifications.forget_runs: what goes with a run.
            models.Index("run_id", name="notifications_of_run", condition=models.Q(run_id__isnull=False)),
            # notifications.forget_old.
            models.Index(fields=["created_at"], name="notifications_oldest"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(emailed_at=None) | models.Q(email_due_at=None), name="notification_mailed_once"
            ),
        ]

    def __str__(self) -> str:
        return self.title


class NotificationReceipt(models.Model):
    """What one person has had of a notification: has read it, was sent it by e-mail. No row: neither."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="+", db_index=False)
    notification = models.ForeignKey(Notification, models.CASCADE, related_name="receipts", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    read_at = models.DateTimeField(null=True)
    emailed_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            # The administration's list of a project.
            models.Index(fields=["project", "-id"], name="receipts_newest"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["notification", "user"], name="notification_receipt_once"),
        ]

    def __str__(self) -> str:
        return f"{self.notification_id} to {self.user_id}"


class Incarnation(models.Model):
    """One life of the database: made by `agentops post_restore` after a backup was put back. Without any: its first.

    Readers' cursors and workers' epochs of before belong to an earlier one, and are known by that.
    """

    #: The lowest epoch from this restore on, made from the time, so that two restores of one backup differ.
    number = models.PositiveIntegerField(primary_key=True)
    made_by = models.CharField(max_length=200)
    begun_at = models.DateTimeField(auto_now_add=True)
    #: When every run was fenced off from workers of before; null where that was cut off: begin another one.
    finished_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return str(self.number)
