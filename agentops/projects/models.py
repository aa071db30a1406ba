"""Models: projects and what belongs to them, such as memberships, API keys and redaction rules; and incarnations."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NoReturn

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.dispatch import Signal
from uuid_utils.compat import uuid7

from agentops.projects.names import NOT_A_UUID, SLUG

#: Sent by QuerySet.update(), which sends no post_save. `ids` are those of the keys, or of the members' users.
keys_changed, memberships_changed = Signal(), Signal()


class Project(models.Model):
    """Projects isolate teams from each other: every run, API key and event belongs to one project."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    slug = models.CharField(max_length=63, unique=True, validators=[SLUG, NOT_A_UUID])
    name = models.CharField(max_length=200)
    #: Days after which ended runs are deleted; null keeps them forever.
    retention_days = models.PositiveIntegerField(null=True, blank=True, default=90)
    settings = models.JSONField(default=dict, blank=True)
    #: Whether prompts, messages and tool outputs are masked before they are stored and sent to a model.
    masks_model_input = models.BooleanField(default=True, db_default=True, editable=False)
    #: Raised with each change of the redaction rules and of `masks_model_input`, so that other processes see it.
    redaction_version = models.PositiveIntegerField(default=0, db_default=0, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.slug


class Role(models.TextChoices):
    """The role of a member."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class MembershipQuerySet(models.QuerySet["Membership"]):
    """Memberships."""

    def update(self, **kwargs: Any) -> int:
        """Update the rows and send `memberships_changed`."""
        user_ids = list(self.values_list("user_id", flat=True))
        changed = super().update(**kwargs)
        memberships_changed.send(sender=self.model, ids=user_ids)
        return changed

    update.alters_data = True  # type: ignore[attr-defined]


class Membership(models.Model):
    """The role of a user in a project. It is read for each request, so that changes take effect at once."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="memberships")
    # PROTECT: deleting a user must not remove a project's last admin without an audit entry.
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
    """A permission of an API key. Scopes are not hierarchical: `write` does not include `ingest`."""

    INGEST = "ingest"
    READ = "read"
    WRITE = "write"
    #: View redacted values.
    SECRETS = "secrets"


class KeyState(models.TextChoices):
    """The state of an API key."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    """API keys."""

    def active(self, now: datetime) -> ApiKeyQuerySet:
        """Return the keys that are active at `now`; the SQL form of `ApiKey.state`."""
        unexpired = models.Q(expires_at=None) | models.Q(expires_at__gt=now)
        return self.filter(unexpired, revoked_at=None)

    def update(self, **kwargs: Any) -> int:
        """Update the rows and send `keys_changed`, unless only the last use changes."""
        if kwargs.keys() == {"last_used_at"}:  # written with every use of a key
            return super().update(**kwargs)
        # Read before the update: afterwards the rows may not match the filter.
        ids = list(self.values_list("pk", flat=True))
        changed = super().update(**kwargs)
        keys_changed.send(sender=self.model, ids=ids)
        return changed

    update.alters_data = True  # type: ignore[attr-defined]


class ApiKey(models.Model):
    """An API key of a project. Only its SHA-256 digest is stored."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=200)
    #: The public part of the key, by which it is looked up.
    prefix = models.CharField(max_length=32, unique=True)
    sha256 = models.BinaryField(max_length=32)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    #: Updated at most once a minute, see keys.authenticate.
    last_used_at = models.DateTimeField(null=True, blank=True)

    objects = ApiKeyQuerySet.as_manager()

    def __str__(self) -> str:
        return f"{self.prefix} {self.name}"

    def state(self, now: datetime) -> KeyState:
        """Return the state at `now`."""
        if self.revoked_at is not None:
            return KeyState.REVOKED
        if self.expires_at is not None and self.expires_at <= now:
            return KeyState.EXPIRED
        return KeyState.ACTIVE


class RedactionRule(models.Model):
    """A redaction rule of a project. It is added and removed, never changed (agentops.projects.redaction_rules)."""

    class Kind(models.TextChoices):
        """What a rule says."""

        #: Mask this value, in all its encodings.
        SECRET = "secret"  # noqa: S105
        #: Mask tokens of this format.
        FORMAT = "format"
        #: Do not mask secrets of the built-in kind `name`.
        EXCEPTION = "exception"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="redaction_rules", db_index=False)
    kind = models.CharField(max_length=9, choices=Kind.choices)
    #: The kind in the marks of the rule, as in [REDACTED:<name>:<digest>].
    name = models.CharField(max_length=32)
    #: Of a secret: its encrypted value, and the ID of the key (redaction_rules/sealing.py). Nothing shows it again.
    sealed = models.BinaryField(null=True)
    key_id = models.CharField(max_length=16, blank=True)
    #: Of a format: see timeline.redaction.token_formats.TokenFormat.
    prefix = models.CharField(max_length=64, blank=True)
    alphabet = models.CharField(max_length=8, blank=True)
    least = models.PositiveSmallIntegerField(null=True)
    most = models.PositiveSmallIntegerField(null=True)
    #: The actor, in the form of the audit log.
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            # Also lists the rules of a project.
            models.UniqueConstraint(fields=["project", "name"], name="redaction_rule_once"),
            models.CheckConstraint(
                condition=models.Q(kind__in=["secret", "format", "exception"]), name="redaction_rule_kind_known"
            ),
            models.CheckConstraint(
                condition=models.Q(kind="secret", sealed__isnull=False)
                | ~models.Q(kind="secret") & models.Q(sealed=None),
                name="redaction_rule_secret_sealed",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class AuditEntryAltered(TypeError):
    """Code tried to change or delete an audit entry."""


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
            # The audit log of a project, newest first.
            models.Index(fields=["project", "-created_at"], name="audit_of_project"),
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


class IdempotencyKey(models.Model):
    """The stored response of a request with an `Idempotency-Key`. A repeated request gets it without any effect.

    Written in the transaction of the request.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="idempotency_keys", db_index=False)
    #: Kind and ID of the caller: keys of different callers are independent.
    caller = models.CharField(max_length=64)
    key = models.CharField(max_length=255)
    #: SHA-256 of the request: method, path and body.
    asked = models.BinaryField(max_length=32)
    status = models.PositiveSmallIntegerField()
    headers = models.JSONField(default=dict)
    #: The exact response body.
    body = models.TextField()
    created_at = models.DateTimeField()

    class Meta:
        indexes = [
            # idempotency_keys.forget_old_keys: oldest first.
            models.Index(fields=["created_at"], name="idempotency_oldest"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["project", "caller", "key"], name="idempotency_key_once"),
        ]

    def __str__(self) -> str:
        return f"{self.key} of {self.caller}"


class Notification(models.Model):
    """A notification to the members of a project: on their notifications page, and by e-mail to operators and admins.

    The run is not a foreign key, because this app does not depend on runs. The notification is deleted together with
    the run (runs/upkeep/retention.py).
    """

    class Kind(models.TextChoices):
        """The reason for the notification."""

        #: A policy or an agent requests a decision.
        ESCALATED = "escalated"
        #: A run has paused because of a problem that a person has to fix.
        PAUSED = "paused"
        #: A tool call waits for approval.
        APPROVAL = "approval"
        #: An alert rule has found something.
        ALERT = "alert"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="notifications", db_index=False)
    run_id = models.UUIDField(null=True)
    kind = models.CharField(max_length=32)
    #: One line.
    title = models.CharField(max_length=200)
    text = models.TextField(blank=True)
    created_at = models.DateTimeField()
    #: When all recipients had been sent the e-mail, even if there are none.
    emailed_at = models.DateTimeField(null=True)
    #: When the e-mail is due; null after it was sent or given up.
    email_due_at = models.DateTimeField(null=True)
    #: Number of attempts, which is also the fencing token of the claim.
    email_attempts = models.PositiveSmallIntegerField(default=0)
    #: Error of the last attempt.
    email_error = models.CharField(max_length=500, blank=True)

    class Meta:
        indexes = [
            # The notifications page and the unread count: IDs are ordered by time.
            models.Index(fields=["project", "-id"], name="notifications_newest"),
            # mailing.take_due.
            models.Index("email_due_at", name="notifications_due", condition=models.Q(email_due_at__isnull=False)),
            # notifications.forget_runs.
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
    """When a user read a notification and was sent it by e-mail. Without a row, neither."""

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
    """An incarnation of the database, created by `agentops post_restore` after a backup was restored.

    Cursors of readers and epochs of workers from before the restore belong to an earlier incarnation, and are rejected.
    """

    #: The lowest epoch after this restore, derived from the time, so that two restores of one backup differ.
    number = models.PositiveIntegerField(primary_key=True)
    made_by = models.CharField(max_length=200)
    begun_at = models.DateTimeField(auto_now_add=True)
    #: When all runs were fenced from earlier workers; null if the restore was interrupted and must be repeated.
    finished_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return str(self.number)
