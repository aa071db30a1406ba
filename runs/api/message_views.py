"""`…/agent-runs/{run}/messages` and `…/messages/{message}`: the messages of a run."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from runs.actions.reveal import reveal
from runs.api.base_views import ApiView, HotListView
from runs.api.problems import JSON, ResourceNotFound
from runs.api.requests.pagination import Fetch, page_of
from runs.api.requests.queries import SecretsQuery
from runs.models import AgentRunMessage
from runs.queries.record_columns import MESSAGE, MESSAGES, of_run
from runs.queries.run_columns import with_id


class MessageNotFound(ResourceNotFound):
    code = "message_not_found"
    text = "no such message in this run"


@extend_schema(responses=page_of(MESSAGES))
class Messages(HotListView):
    """List the messages of a run by step, without their content."""

    def get_rows(self) -> Fetch:
        return partial(MESSAGES.page, of_run(self.look_up_run(), "m"))


@extend_schema(responses={200: MESSAGE.schema()})
class MessageDetail(ApiView):
    """Get a message with its content."""

    query_class: ClassVar = SecretsQuery

    def get(self, request: Request, **_: Any) -> HttpResponse:
        run, secrets = self.look_up_run(), "secrets" in self.query
        text = MESSAGE.one(with_id(of_run(run, "m"), "m.id", self.kwargs["message_id"]), secrets=secrets)
        if text is None:
            raise MessageNotFound
        if secrets:
            reveal(self.principal, run.project_id, AgentRunMessage(pk=self.kwargs["message_id"]))
            return HttpResponse(text, content_type=JSON, headers={"Cache-Control": "no-store"})
        return self.tagged(text)
