"""Projects, their members, keys and audit log; keys of repeated requests; restores; notifications."""

from __future__ import annotations

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.core.validators import RegexValidator
from django.db import migrations, models
from uuid_utils.compat import uuid7


class Migration(migrations.Migration):
    initial = True

    dependencies = [("auth", "__first__")]

    operations = [
        migrations.CreateModel(
            name="Project",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "slug",
                    models.CharField(
                        max_length=63,
                        unique=True,
                        validators=[
                            RegexValidator(
                                "\\A[a-z0-9][a-z0-9-]{0,62}\\Z", "Use at most 63 lower-case letters, digits and dashes."
                            ),
                            RegexValidator(
                                "\\A[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\\Z",
                                "A slug must not be a UUID.",
                                inverse_match=True,
                            ),
                        ],
                    ),
                ),
                ("name", models.CharField(max_length=200)),
                ("retention_days", models.PositiveIntegerField(blank=True, default=90, null=True)),
                ("settings", models.JSONField(blank=True, default=dict)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.CreateModel(
            name="ApiKey",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200)),
                ("prefix", models.CharField(max_length=32, unique=True)),
                ("sha256", models.BinaryField(max_length=32)),
                ("scopes", models.JSONField(default=list)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                ("last_used_at", models.DateTimeField(blank=True, null=True)),
                (
                    "project",
                    models.ForeignKey(on_delete=models.CASCADE, related_name="api_keys", to="projects.project"),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Membership",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "role",
                    models.CharField(
                        choices=[("viewer", "Viewer"), ("operator", "Operator"), ("admin", "Admin")], max_length=8
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=models.PROTECT, related_name="memberships", to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(on_delete=models.CASCADE, related_name="memberships", to="projects.project"),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("project", "user"), name="membership_once"),
                    models.CheckConstraint(
                        condition=models.Q(("role__in", ["viewer", "operator", "admin"])), name="membership_role_known"
                    ),
                ]
            },
        ),
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("actor", models.CharField(max_length=200)),
                ("ip", models.GenericIPAddressField(null=True)),
                ("action", models.CharField(max_length=64)),
                ("object_type", models.CharField(blank=True, max_length=64)),
                ("object_id", models.CharField(blank=True, max_length=128)),
                ("before", models.JSONField(encoder=DjangoJSONEncoder, null=True)),
                ("after", models.JSONField(encoder=DjangoJSONEncoder, null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "project",
                    models.ForeignKey(
                        null=True, on_delete=models.SET_NULL, related_name="audit_entries", to="projects.project"
                    ),
                ),
            ],
            options={"indexes": [models.Index(fields=["project", "-created_at"], name="audit_of_project")]},
        ),
        migrations.CreateModel(
            name="IdempotencyKey",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("caller", models.CharField(max_length=64)),
                ("key", models.CharField(max_length=255)),
                ("asked", models.BinaryField(max_length=32)),
                ("status", models.PositiveSmallIntegerField()),
                ("headers", models.JSONField(default=dict)),
                ("body", models.TextField()),
                ("created_at", models.DateTimeField()),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="idempotency_keys", to="projects.project"
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["created_at"], name="idempotency_oldest")],
                "constraints": [
                    models.UniqueConstraint(fields=("project", "caller", "key"), name="idempotency_key_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Incarnation",
            fields=[
                ("number", models.PositiveIntegerField(primary_key=True, serialize=False)),
                ("made_by", models.CharField(max_length=200)),
                ("begun_at", models.DateTimeField(auto_now_add=True)),
                ("finished_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Notification",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("run_id", models.UUIDField(null=True)),
                ("kind", models.CharField(max_length=32)),
                ("title", models.CharField(max_length=200)),
                ("text", models.TextField(blank=True)),
                ("created_at", models.DateTimeField()),
                ("emailed_at", models.DateTimeField(null=True)),
                ("email_due_at", models.DateTimeField(null=True)),
                ("email_attempts", models.PositiveSmallIntegerField(default=0)),
                ("email_error", models.CharField(blank=True, max_length=500)),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="notifications", to="projects.project"
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["project", "-id"], name="notifications_newest"),
                    models.Index(
                        models.F("email_due_at"),
                        condition=models.Q(("email_due_at__isnull", False)),
                        name="notifications_due",
                    ),
                    models.Index(
                        models.F("run_id"), condition=models.Q(("run_id__isnull", False)), name="notifications_of_run"
                    ),
                    models.Index(fields=["created_at"], name="notifications_oldest"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("emailed_at", None), ("email_due_at", None), _connector="OR"),
                        name="notification_mailed_once",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="NotificationReceipt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("read_at", models.DateTimeField(null=True)),
                ("emailed_at", models.DateTimeField(null=True)),
                (
                    "notification",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="receipts", to="projects.notification"
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="projects.project"
                    ),
                ),
                ("user", models.ForeignKey(on_delete=models.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL)),
            ],
            options={
                "indexes": [models.Index(fields=["project", "-id"], name="receipts_newest")],
                "constraints": [
                    models.UniqueConstraint(fields=("notification", "user"), name="notification_receipt_once")
                ],
            },
        ),
    ]
