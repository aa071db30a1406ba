"""Notifications and who has received them, and the e-mail addresses of users, which may be verified."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from uuid_utils.compat import uuid7

from agentops.accounts.models.project_models import Project


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
        #: An alert rule has fired.
        ALERT = "alert"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="notifications", db_index=False)
    run_id = models.UUIDField(null=True)
    kind = models.CharField(max_length=32)
    #: One line.
    title = models.CharField(max_length=200)
    text = models.TextField(blank=True)
    created_at = models.DateTimeField()
    #: When the e-mail had been sent to all recipients; also set without any recipients.
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
    """When a user read a notification and was sent it by e-mail. A missing row means neither."""

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


class EmailAddress(models.Model):
    """The verification state of a user's e-mail address (agentops.accounts.login.addresses).

    The address itself is `User.email`. A row with another address is ignored, so a changed address is not verified,
    even if it was changed by a program or in the administration.
    """

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, models.CASCADE, primary_key=True, related_name="email_address"
    )
    #: In lower case.
    email = models.EmailField()
    #: When a link that was sent to the address was opened. Null: never.
    verified_at = models.DateTimeField(null=True)
    #: The part of the newest link that makes it valid once. Empty: no link is valid.
    nonce = models.CharField(max_length=32, blank=True, default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["email"], condition=models.Q(verified_at__isnull=False), name="email_address_verified_once"
            ),
        ]

    def __str__(self) -> str:
        return self.email
