"""Threads of graphs are kept as long as the runs of their project, and the states of runs as long as the runs."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from runs.models import GraphThread, GraphValue
from runs.remote import graph_threads
from runs.remote.bodies import GraphValueBody, PutInThread
from runs.upkeep import retention
from tests.support.factories import make_project


@pytest.mark.django_db
def test_a_thread_is_deleted_when_its_last_change_is_older_than_the_retention_period() -> None:
    kept, brief = make_project("kept"), make_project("brief")
    value = GraphValueBody(kind="checkpoint", checkpoint="1", text="null:")
    for project, days in ((kept, None), (brief, 10)):
        project.retention_days = days
        project.save()
        for age in (9, 11):
            put = PutInThread(op="put", thread=f"{age} days", values=[value])
            graph_threads.perform(project, [put], by="test")
            aged = GraphThread.objects.filter(project=project, name=f"{age} days")
            aged.update(modified_at=timezone.now() - timedelta(days=age))

    retention.delete_expired()

    left = GraphThread.objects.order_by("project__slug", "name").values_list("project__slug", "name")
    assert list(left) == [("brief", "9 days"), ("kept", "11 days"), ("kept", "9 days")]
    assert GraphValue.objects.count() == 3
