"""Projects, their members and invitations, and their redaction rules."""

from __future__ import annotations

from typing import Any, cast

from django.conf import settings
from django.db import models
from django.dispatch import Signal
from uuid_utils.compat import uuid7

from agentops.accounts.errors import ProjectNotFound
from agentops.accounts.names import NOT_A_UUID, SLUG
from agentops.base.database_clock import StampField

#: Sent by QuerySet.update(), which does not send post_save. `ids` are the IDs of the members' users.
memberships_changed = Signal()


class ProjectQuerySet(models.QuerySet["Project"]):
    """Projects."""

    def locked(self, project: Project) -> Project:
        """Lock a project and return its current row, to serialize changes. Raise ProjectNotFound if it is being
        deleted.

        NO KEY does not block inserts of rows that refer to the project.
        """
        found = self.select_for_update(no_key=True).filter(pk=project.pk).first()
        if found is None:
            raise ProjectNotFound
        return found


_AllProjects = models.Manager.from_queryset(ProjectQuerySet)


class ProjectManager(_AllProjects["Project"]):
    """The default manager of projects. It hides projects that are being deleted."""

    def get_queryset(self) -> ProjectQuerySet:
        """Return the projects that are not being deleted."""
        return cast("ProjectQuerySet", super().get_queryset().filter(removed_at=None))


class Project(models.Model):
    """Projects isolate teams from each other: every run, API key and event belongs to one project."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    slug = models.CharField(max_length=63, unique=True, validators=[SLUG, NOT_A_UUID])
    name = models.CharField(max_length=200)
    #: Plain text of a few lines, shown on the list of projects.
    description = models.TextField(blank=True, default="", db_default="")
    #: If set, the project is read-only, and hidden from menus.
    archived_at = models.DateTimeField(null=True, editable=False)
    #: Days after which ended runs are deleted; null keeps them forever.
    retention_days = models.PositiveIntegerField(null=True, blank=True, default=90)
    settings = models.JSONField(default=dict, blank=True)
    #: Runs of the project that workers execute at the same time; null: as many as there are places.
    max_running = models.PositiveIntegerField(null=True, blank=True)
    #: Whether events leave the site: to the sinks of the whole site, and to the project's own ones.
    exports_telemetry = models.BooleanField(default=True, db_default=True, editable=False)
    #: When the export was last enabled again. The sinks of the whole site get nothing of runs that began before.
    telemetry_since = models.DateTimeField(null=True, editable=False)
    #: Whether prompts, messages and tool outputs are masked before they are stored and sent to a model.
    masks_model_input = models.BooleanField(default=True, db_default=True, editable=False)
    #: Raised with each change of the redaction rules and of `masks_model_input`, so that other processes see it.
    redaction_version = models.PositiveIntegerField(default=0, db_default=0, editable=False)
    created_at = StampField(auto_now_add=True)
    #: If set, the project is being deleted: it is hidden, and workers delete its rows (runs.upkeep.project_removal).
    removed_at = models.DateTimeField(null=True, editable=False)
    #: While it is being deleted: its former `slug`, by whom (`by`), and the number of deleted rows by table (`rows`).
    removal = models.JSONField(null=True, editable=False)

    objects = ProjectManager()

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
    created_at = StampField(auto_now_add=True)

    objects = MembershipQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "user"], name="membership_once"),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="membership_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} {self.role} of {self.project_id}"


class Invitation(models.Model):
    """An invitation of an e-mail address to a project. A signed link accepts it (agentops.accounts.invitations).

    It is deleted when it is accepted or withdrawn; the audit log records both.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="invitations", db_index=False)
    #: In lower case.
    email = models.EmailField()
    role = models.CharField(max_length=8, choices=Role.choices)
    #: The actor, in the form of the audit log.
    created_by = models.CharField(max_length=200)
    created_at = StampField(auto_now_add=True)
    expires_at = models.DateTimeField()

    class Meta:
        constraints = [
            # Also lists the invitations of a project.
            models.UniqueConstraint(fields=["project", "email"], name="invitation_once"),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="invitation_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.email} {self.role} of {self.project_id}"


class RedactionRule(models.Model):
    """A redaction rule of a project. It is added and removed, never changed (agentops.accounts.redaction_cache)."""

    class Kind(models.TextChoices):
        """The type of a rule."""

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
    #: Of a secret: its encrypted value, and the ID of the key (redaction_rules/sealing.py). It is never displayed.
    sealed = models.BinaryField(null=True)
    key_id = models.CharField(max_length=16, blank=True)
    #: Of a format: see agentops.base.redaction.registered_secrets.TokenFormat.
    prefix = models.CharField(max_length=64, blank=True)
    alphabet = models.CharField(max_length=8, blank=True)
    least = models.PositiveSmallIntegerField(null=True)
    most = models.PositiveSmallIntegerField(null=True)
    #: The actor, in the form of the audit log.
    created_by = models.CharField(max_length=200)
    created_at = StampField(auto_now_add=True)

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
