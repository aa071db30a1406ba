"""`…/agent-runs/{run}/messages` and `…/messages/{message}`: the conversation."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse

from runs.actions.reveal import reveal
from runs.api.base_views import JSON, ApiView
from runs.api.problems import ResourceNotFound
from runs.api.requests.pagination import PAGING, Pages
from runs.api.requests.parameters import SECRETS
from runs.api.schema.shared import page_of
from runs.models import AgentRunMessage
from runs.queries.record_columns import MESSAGE, MESSAGES, of_run
from runs.queries.run_columns import with_id


class MessageNotFound(ResourceNotFound):
    code = "message_not_found"
    text = "no such message in this run"


class Messages(ApiView):
    """List the messages of a run by step, without their content."""

    parameters: ClassVar = {"get": PAGING}
    answers: ClassVar = {"get": page_of(MESSAGES)}

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        run = self.look_up_run()
        pages = Pages.of(request, self.query, "messages", run.pk)
        return pages.answer(lambda span: MESSAGES.page(of_run(run, "m"), span))


class MessageDetail(ApiView):
    """Get a message with its content."""

    parameters: ClassVar = {"get": (SECRETS,)}
    answers: ClassVar = {"get": MESSAGE.schema()}

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        run, secrets = self.look_up_run(), bool(self.query["secrets"])
        text = MESSAGE.one(with_id(of_run(run, "m"), "m.id", self.kwargs["message_id"]), secrets=secrets)
        if text is None:
            raise MessageNotFound
        if secrets:
            reveal(self.principal, run.project_id, AgentRunMessage(pk=self.kwargs["message_id"]))
            return HttpResponse(text, content_type=JSON, headers={"Cache-Control": "no-store"})
        return self.tagged(text)
