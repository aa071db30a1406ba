"""Live streams of a run contain no secrets: neither JSON events, nor AG-UI events, nor rows of the page."""

from __future__ import annotations

import pytest
from django.db import transaction

from runs.models import AgentRunMessage, AgentRunToolCall
from tests.support.factories import drive
from tests.support.secret_samples import TEXT, add_rules, answer_of, seen_in, store_raw
from tests.support.timelines import StreamedRun
from tests.support.timing import eventually
from timeline import log
from timeline.events.notice import Error
from timeline.log import Entry
from timeline.models import Source

pytestmark = pytest.mark.breaks_invariants("an answer's content is replaced by one with secrets")


@pytest.mark.parametrize("kind", ["json", "ag-ui", "html"])
def test_no_stream_contains_a_canary(streamed: StreamedRun, kind: str) -> None:
    add_rules(streamed.project)
    run = drive(streamed.run)
    answer = answer_of(run)
    content = {**answer.content, "parts": [{"part_kind": "text", "content": TEXT}]}
    AgentRunMessage.objects.filter(pk=answer.pk).update(content=content)
    secret = {"text": TEXT, "password": "s3cret-pw"}
    AgentRunToolCall.objects.filter(run=run).update(input=secret, output=TEXT)
    with transaction.atomic():
        log.append(run.pk, [Entry(Error(error_type="x", error=TEXT))], source=Source.WORKER)
    store_raw(run)

    url = streamed.page_url if kind == "html" else streamed.url
    dialect = "&dialect=ag-ui" if kind == "ag-ui" else ""
    reader = streamed.listeners.open(f"{url}?afterSeq=0{dialect}", streamed.cookie)
    eventually(
        lambda: "[REDACTED:" in "".join(m.data or "" for m in reader.messages), within_s=10, why="the error came"
    )

    said = "\n".join(message.data or "" for message in reader.messages)
    assert "s3cret-pw" not in said
    assert seen_in(said) == []
    assert seen_in(said.replace("\\n", "\n")) == []
