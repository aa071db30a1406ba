"""`…/agent-runs/{run}/messages` and `…/messages/{message}`: the messages of a run."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from agentops.base.refusals import NotFound
from runs.actions.reveal import reveal
from runs.api.base_views import ApiView, RecordListView
from runs.api.problems import JSON
from runs.api.requests.pagination import page_of
from runs.api.requests.queries import RecordPageQuery, SecretsQuery
from runs.models import AgentRunMessage
from runs.queries.record_columns import MESSAGE, MESSAGES, of_run
from runs.queries.run_columns import with_id


@extend_schema(responses=page_of(MESSAGES))
class Messages(RecordListView):
    """List the messages of a run by step, without their content."""

    query_class: ClassVar = RecordPageQuery
    listing, run_column = MESSAGES, "m.run_id"


@extend_schema(responses={200: MESSAGE.schema()})
class MessageDetail(ApiView):
    """Get a message with its content."""

    query_class: ClassVar = SecretsQuery

    def get(self, request: Request, **_: Any) -> HttpResponse:
        run, secrets = self.get_run_key(), "secrets" in self.query
        text = MESSAGE.one(with_id(of_run(run, "m"), "m.id", self.kwargs["message_id"]), secrets=secrets)
        if text is None:
            raise NotFound("no such message in this run", code="message_not_found")
        if secrets:
            reveal(self.principal, run.project_id, AgentRunMessage(pk=self.kwargs["message_id"]))
            return HttpResponse(text, content_type=JSON, headers={"Cache-Control": "no-store"})
        return self.etag_response(text)
