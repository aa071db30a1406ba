"""What is stored of one run: messages, tool calls, checkpoints, commands, attempts, errors and usage."""

from __future__ import annotations

from django.db import migrations, models
from uuid_utils.compat import uuid7


class Migration(migrations.Migration):
    dependencies = [("runs", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="AgentRunMessage",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("position", models.PositiveIntegerField()),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("system", "System"),
                            ("user", "User"),
                            ("assistant", "Assistant"),
                            ("tool_result", "Tool Result"),
                        ],
                        max_length=11,
                    ),
                ),
                ("content", models.JSONField()),
                ("step_number", models.PositiveIntegerField()),
                ("epoch", models.IntegerField(null=True)),
                ("model", models.CharField(blank=True, default="", max_length=200)),
                ("sha256", models.BinaryField(max_length=32)),
                ("rolled_back_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField()),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False, on_delete=models.PROTECT, related_name="messages", to="runs.agentrun"
                    ),
                ),
            ],
            options={
                "db_table": "agent_run_messages",
                "constraints": [
                    models.UniqueConstraint(fields=("run", "position"), name="message_position_once"),
                    models.UniqueConstraint(
                        condition=models.Q(("role", "assistant"), ("rolled_back_at__isnull", True)),
                        fields=("run", "step_number"),
                        name="message_one_answer_per_step",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="AgentRunToolCall",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("call_id", models.CharField(max_length=256)),
                ("tool_name", models.CharField(max_length=256)),
                ("input", models.JSONField(null=True)),
                ("output", models.JSONField(null=True)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("planned", "planned"),
                            ("running", "running"),
                            ("completed", "completed"),
                            ("error", "error"),
                            ("denied", "denied"),
                            ("unknown", "unknown"),
                        ],
                        default="planned",
                        max_length=9,
                    ),
                ),
                (
                    "effect",
                    models.CharField(
                        choices=[("read", "read"), ("idempotent", "idempotent"), ("at_most_once", "at_most_once")],
                        default="at_most_once",
                        max_length=12,
                    ),
                ),
                ("idempotency_key", models.CharField(max_length=128, null=True)),
                ("starts", models.PositiveSmallIntegerField(default=0)),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("duration_ms", models.PositiveIntegerField(null=True)),
                ("step_number", models.PositiveIntegerField()),
                ("created_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "child_run",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=models.PROTECT,
                        related_name="spawned_by",
                        to="runs.agentrun",
                    ),
                ),
                (
                    "message",
                    models.ForeignKey(
                        db_index=False, on_delete=models.PROTECT, related_name="tool_calls", to="runs.agentrunmessage"
                    ),
                ),
                (
                    "result_message",
                    models.ForeignKey(
                        db_index=False, null=True, on_delete=models.PROTECT, related_name="+", to="runs.agentrunmessage"
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False, on_delete=models.PROTECT, related_name="tool_calls", to="runs.agentrun"
                    ),
                ),
                ("resolved_by", models.CharField(max_length=200, null=True)),
                ("resolved_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "agent_run_tool_calls",
                "indexes": [
                    models.Index(fields=["run", "step_number"], name="tool_call_list"),
                    models.Index(
                        condition=models.Q(("child_run__isnull", False)),
                        fields=["child_run"],
                        name="tool_call_of_child",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("message", "call_id"), name="tool_call_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("status__in", ["planned", "running", "completed", "error", "denied", "unknown"])
                        ),
                        name="tool_call_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("starts__gt", 0), ("status", "planned"), _negated=True),
                            models.Q(("starts", 0), ("status__in", ["running", "completed"]), _negated=True),
                        ),
                        name="tool_call_started_before_running",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("idempotency_key__isnull", False)),
                        fields=("idempotency_key",),
                        name="tool_call_idempotency_key_once",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("epoch", models.IntegerField()),
                ("owner", models.CharField(max_length=128)),
                ("step_number", models.PositiveIntegerField()),
                ("claimed_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                ("end_reason", models.CharField(blank=True, default="", max_length=64)),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False, on_delete=models.PROTECT, related_name="attempts", to="runs.agentrun"
                    ),
                ),
            ],
            options={
                "db_table": "agent_run_attempts",
                "constraints": [models.UniqueConstraint(fields=("run", "epoch"), name="attempt_once_per_epoch")],
            },
        ),
        migrations.CreateModel(
            name="Checkpoint",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("step_number", models.PositiveIntegerField()),
                ("last_message_position", models.PositiveIntegerField()),
                ("epoch", models.IntegerField(null=True)),
                ("created_at", models.DateTimeField()),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False, on_delete=models.PROTECT, related_name="checkpoints", to="runs.agentrun"
                    ),
                ),
            ],
            options={
                "db_table": "agent_run_checkpoints",
                "constraints": [
                    models.UniqueConstraint(fields=("run", "step_number"), name="checkpoint_once_per_step")
                ],
            },
        ),
        migrations.CreateModel(
            name="RunCommand",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("key", models.CharField(max_length=128, null=True)),
                (
                    "type",
                    models.CharField(
                        choices=[("pause", "Pause"), ("stop", "Stop"), ("send", "Send"), ("reply", "Reply")],
                        max_length=8,
                    ),
                ),
                ("payload", models.JSONField(default=dict)),
                ("created_by", models.CharField(max_length=200)),
                ("received_at", models.DateTimeField()),
                ("applied_at", models.DateTimeField(null=True)),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False, on_delete=models.PROTECT, related_name="commands", to="runs.agentrun"
                    ),
                ),
                (
                    "outcome",
                    models.CharField(
                        choices=[("applied", "Applied"), ("superseded", "Superseded"), ("refused", "Refused")],
                        max_length=10,
                        null=True,
                    ),
                ),
            ],
            options={
                "db_table": "agent_run_commands",
                "indexes": [
                    models.Index(
                        condition=models.Q(("applied_at__isnull", True)), fields=["run", "id"], name="command_pending"
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("applied_at__isnull", True), ("outcome__isnull", True)),
                            models.Q(("applied_at__isnull", False), ("outcome__isnull", False)),
                            _connector="OR",
                        ),
                        name="command_ended_with_outcome",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("key__isnull", False)), fields=("run", "key"), name="command_key_once"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="RunError",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("step_number", models.PositiveIntegerField()),
                ("context", models.CharField(max_length=300)),
                ("error_type", models.CharField(max_length=64)),
                ("message", models.TextField()),
                ("attempt", models.PositiveSmallIntegerField(default=0)),
                ("created_at", models.DateTimeField()),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False, on_delete=models.PROTECT, related_name="errors", to="runs.agentrun"
                    ),
                ),
                ("details", models.TextField(blank=True, default="")),
            ],
            options={
                "db_table": "agent_run_errors",
                "indexes": [models.Index(fields=["run", "step_number"], name="run_error_list")],
            },
        ),
        migrations.CreateModel(
            name="TurnUsage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("step_number", models.PositiveIntegerField()),
                ("attempt", models.PositiveSmallIntegerField(default=0)),
                ("model", models.CharField(blank=True, default="", max_length=200)),
                ("input_tokens", models.BigIntegerField(default=0)),
                ("output_tokens", models.BigIntegerField(default=0)),
                ("cache_read_tokens", models.BigIntegerField(default=0)),
                ("cache_write_tokens", models.BigIntegerField(default=0)),
                ("reasoning_tokens", models.BigIntegerField(default=0)),
                ("cost_usd", models.DecimalField(decimal_places=8, max_digits=16, null=True)),
                ("duration_ms", models.PositiveIntegerField(null=True)),
                ("created_at", models.DateTimeField()),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False, on_delete=models.PROTECT, related_name="turn_usages", to="runs.agentrun"
                    ),
                ),
                ("cache_saved_usd", models.DecimalField(decimal_places=8, max_digits=16, null=True)),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("answered", "Answered"),
                            ("rolled_back", "Rolled Back"),
                            ("abandoned", "Abandoned"),
                            ("lost", "Lost"),
                        ],
                        db_default="answered",
                        default="answered",
                        max_length=11,
                    ),
                ),
                ("usage_complete", models.BooleanField(db_default=True, default=True)),
            ],
            options={
                "db_table": "agent_run_turn_usages",
                "indexes": [models.Index(fields=["run", "step_number"], name="turn_usage_list")],
            },
        ),
    ]
