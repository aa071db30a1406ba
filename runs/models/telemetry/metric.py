"""The models of metrics: counts that are added up from the events, for all processes and over restarts."""

from __future__ import annotations

from django.db import models


class MetricCount(models.Model):
    """A counter with its labels. It only grows."""

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(max_length=64)
    #: The labels in the form of Prometheus's text format, such as `model="m-1",token="input"`.
    labels = models.CharField(max_length=400, blank=True)
    value = models.FloatField(default=0)

    class Meta:
        db_table = "agent_run_metric_counts"
        constraints = [models.UniqueConstraint(fields=["name", "labels"], name="metric_count_once")]

    def __str__(self) -> str:
        return f"{self.name}{{{self.labels}}} {self.value}"


class MetricPosition(models.Model):
    """How far the counts have got. One row, which exists from the first time that the metrics were read."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    #: The last event that is counted, by the ID of its row.
    event_id = models.BigIntegerField(default=0)

    class Meta:
        db_table = "agent_run_metric_position"

    def __str__(self) -> str:
        return f"up to event {self.event_id}"
