"""Kill the web process while it stores recorded events: the recorder sends them again, and none is stored twice."""

from __future__ import annotations

import pytest

from agentops.accounts.models import Project
from agentops.client.delivery import EventDelivery
from agentops.client.recorder import RecordedRun
from runs import chaos
from runs.models import AgentRun
from tests.support.factories import with_key
from tests.support.stage import Stage
from tests.support.suite_fixtures import MakeWeb
from timeline.models import Event


@pytest.mark.parametrize("point", chaos.INGEST_POINTS)
def test_a_recorder_continues_with_the_next_process(stage: Stage, web_process: MakeWeb, point: str) -> None:
    key = with_key(Project.objects.create(slug="outside", name="Outside"), "ingest")["Authorization"]
    web = web_process(AGENTOPS_CHAOS=f"{point}:1")
    delivery = EventDelivery(web.url, key.removeprefix("Bearer "))
    with RecordedRun(delivery, "fixer") as run:
        for number in range(700):
            run.event("x.tick", number=number)
        assert web.process is not None
        web.process.killed()
        web.env.clear()
        web.start()
    assert run.flush(60)
    delivery.close()

    row = AgentRun.objects.get(external_id=run.id)
    ticks = Event.objects.filter(log=row.pk, type="x.tick").order_by("seq")
    assert [event.payload["number"] for event in ticks] == [*range(700)]
    assert (row.status, run.rejected, run.dropped) == ("completed", 0, 0)
