"""Django REST framework on the same rows, as documented: ModelSerializer and CursorPagination, without authentication.
A WSGI application with its own models over the product's tables.

Reads its database from DATABASE_URL. Imports nothing from agentops.
"""

from __future__ import annotations

import os

import dj_database_url
from django.conf import settings
from django.core.wsgi import get_wsgi_application

# Connections as in the product: pooled, and checked before each use.
POOLED = {"CONN_HEALTH_CHECKS": True, "OPTIONS": {"pool": {"min_size": 0, "max_size": 20, "timeout": 15}}}
DATABASE = dj_database_url.parse(os.environ["DATABASE_URL"]) | POOLED

settings.configure(
    SECRET_KEY="for-a-benchmark-on-the-loopback-only",
    ALLOWED_HOSTS=["127.0.0.1"],
    ROOT_URLCONF=__name__,
    # It sets Content-Length, so that a client knows the end of a response.
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "rest_framework"],
    DATABASES={"default": DATABASE},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
    TIME_ZONE="UTC",
    REST_FRAMEWORK={
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "DEFAULT_PERMISSION_CLASSES": [],
        "UNAUTHENTICATED_USER": None,
    },
)
application = get_wsgi_application()

# These imports need loaded applications.
from django.db import models  # noqa: E402
from django.urls import path  # noqa: E402
from rest_framework import generics, pagination, serializers  # noqa: E402


class Agent(models.Model):
    id = models.UUIDField(primary_key=True)
    slug = models.CharField(max_length=63)

    class Meta:
        managed, app_label, db_table = False, "bench", "runs_agent"


class Log(models.Model):
    id = models.UUIDField(primary_key=True)
    last_seq = models.BigIntegerField()
    last_event_at = models.DateTimeField(null=True)

    class Meta:
        managed, app_label, db_table = False, "bench", "timeline_log"


class Run(models.Model):
    log = models.OneToOneField(Log, models.PROTECT, primary_key=True, db_column="id")
    agent = models.ForeignKey(Agent, models.SET_NULL, null=True)
    project_id = models.UUIDField()
    title = models.CharField(max_length=200)
    status = models.CharField(max_length=9)
    status_reason = models.CharField(max_length=64)
    source = models.CharField(max_length=8)
    run_kind = models.CharField(max_length=8)
    labels = models.JSONField()
    parent_run_id = models.UUIDField(null=True)
    root_run_id = models.UUIDField()
    resumed_from_id = models.UUIDField(null=True)
    step_count = models.PositiveIntegerField()
    max_steps = models.PositiveIntegerField()
    input_tokens = models.BigIntegerField()
    output_tokens = models.BigIntegerField()
    cost_usd = models.DecimalField(max_digits=16, decimal_places=8, null=True)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    completed_at = models.DateTimeField(null=True)
    removed_at = models.DateTimeField(null=True)

    class Meta:
        managed, app_label, db_table = False, "bench", "agent_runs"


class Event(models.Model):
    id = models.BigAutoField(primary_key=True)
    log_id = models.UUIDField()
    seq = models.BigIntegerField()
    event_id = models.CharField(max_length=128, null=True)
    run_kind = models.CharField(max_length=8)
    phase = models.CharField(max_length=9)
    type = models.CharField(max_length=128)
    ts = models.DateTimeField()
    step = models.IntegerField(null=True)
    node_id = models.CharField(max_length=128)
    payload = models.JSONField()
    source = models.CharField(max_length=6)

    class Meta:
        managed, app_label, db_table = False, "bench", "agent_run_events"


class RunSerializer(serializers.ModelSerializer):
    agent_id = serializers.CharField(source="agent.slug")
    last_seq = serializers.IntegerField(source="log.last_seq")
    last_event_at = serializers.DateTimeField(source="log.last_event_at")

    class Meta:
        model = Run
        fields = (
            *("log_id", "agent_id", "title", "status", "status_reason", "source", "run_kind", "labels"),
            *("parent_run_id", "root_run_id", "resumed_from_id", "step_count", "max_steps", "input_tokens"),
            *("output_tokens", "cost_usd", "last_seq", "created_at", "started_at", "completed_at", "last_event_at"),
        )


class EventSerializer(serializers.ModelSerializer):
    class Meta:
        model = Event
        fields = (
            "seq",
            "event_id",
            "log_id",
            "run_kind",
            "phase",
            "type",
            "ts",
            "step",
            "node_id",
            "payload",
            "source",
        )


class ByCreation(pagination.CursorPagination):
    page_size = 50
    ordering = "-created_at"


class BySeq(pagination.CursorPagination):
    page_size = 50
    ordering = "seq"


class Runs(generics.ListAPIView):
    serializer_class = RunSerializer
    pagination_class = ByCreation

    def get_queryset(self):
        # Its models lack the columns that may be large, so it does not read them.
        return Run.objects.filter(project_id=self.kwargs["project"], removed_at=None).select_related("agent", "log")


class Events(generics.ListAPIView):
    serializer_class = EventSerializer
    pagination_class = BySeq

    def get_queryset(self):
        return Event.objects.filter(log_id=self.kwargs["log"])


urlpatterns = [
    path("runs/<uuid:project>", Runs.as_view()),
    path("events/<uuid:log>", Events.as_view()),
]
