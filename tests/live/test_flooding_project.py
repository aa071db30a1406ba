"""Slow requests of a project with many keys do not block other projects."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest
from django.conf import settings
from django.db import transaction

from runs.models import AgentRun
from tests.support.api import STARTED, URL, event
from tests.support.factories import make_project, with_key
from tests.support.timing import eventually
from tests.support.web_server import WebThread

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


def test_many_keys_of_one_project_leave_threads_to_others(web: WebThread) -> None:
    """Each request waits for a locked row, and there are more requests than the process has threads."""
    flooding, other = make_project("flooding"), make_project("other")
    keys = [with_key(flooding, "ingest") for _ in range(settings.AGENTOPS_WEB_THREADS + 2)]
    newcomer = with_key(other, "ingest")
    answers: list[int] = []

    def post(headers: dict[str, str], sent: dict[str, Any]) -> httpx.Response:
        return httpx.post(web.url + URL, headers=headers, json=sent, timeout=20)

    def flood(headers: dict[str, str]) -> None:
        answers.append(post(headers, event()).status_code)

    # The first request of each key shows the site which project the key belongs to.
    assert {post(headers, STARTED | {"event_id": f"start-{n}"}).status_code for n, headers in enumerate(keys)} == {200}
    threads = [threading.Thread(target=flood, args=[headers]) for headers in keys]
    try:
        with transaction.atomic():
            AgentRun.objects.select_for_update().get(external_id="r1")
            for thread in threads:
                thread.start()
            eventually(lambda: web.open_requests == len(keys), within_s=10, why="all requests have come")

            assert post(newcomer, STARTED).status_code == 200
            assert answers == []
    finally:
        for thread in threads:
            thread.join(20)
    assert answers == [200] * len(keys)
