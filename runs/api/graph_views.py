"""`/api/work/checkpoints` and `/api/work/threads`: the stored states of graphs that processes elsewhere execute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson
from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from agentops.accounts.audit import name_of
from agentops.accounts.models import Project
from runs.api.problems import JSON
from runs.api.requests.bodies import StringField, document_of
from runs.api.requests.idempotency import answer_once
from runs.api.requests.queries import CleanText, QuerySerializer, WholeParameter
from runs.api.work_schema import CHANGED_THREADS, CHECKPOINTS, schema_of
from runs.api.work_views import AnswerView, WorkView
from runs.remote import graph_states, graph_threads
from runs.remote.bodies import ThreadsBody
from runs.remote.graph_states import PAGE


class JsonObject(StringField):
    """A JSON object as text."""

    def to_internal_value(self, data: Any) -> Any:
        try:
            value = json.loads(super().to_internal_value(data))
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ValidationError("this must be a JSON object")
        return value


class CheckpointsQuery(QuerySerializer):
    thread = CleanText(
        required=False,
        min_length=1,
        allow_blank=False,
        max_length=200,
        help_text="Name of a thread, or the ID of a run, whose checkpoints include those of the runs that it continues."
        " By default, all threads.",
        style={"example": "chat-17"},
    )
    namespace = CleanText(
        required=False, max_length=300, help_text="Only this sub-graph. Empty: the graph itself. By default, all."
    )
    checkpoint = CleanText(required=False, max_length=64, help_text="Only the checkpoint with this ID.")
    before = CleanText(required=False, max_length=64, help_text="Only checkpoints with smaller IDs.")
    metadata = JsonObject(
        required=False,
        max_length=4000,
        help_text="Only checkpoints whose metadata have these members: a JSON object.",
        style={"example": '{"source": "input"}'},
    )
    limit = WholeParameter(1, PAGE, default=PAGE, help_text=f"Checkpoints per page, at most {PAGE}.")


@extend_schema(responses={200: CHECKPOINTS})
class WorkCheckpoints(WorkView):
    """Get checkpoints of graphs, newest first, with their pending writes and channel values."""

    query_class = CheckpointsQuery

    def get(self, request: Request) -> HttpResponse:
        project, query = self.get_work_project(), self.query
        values = graph_states.values_of(project, query.get("thread"))
        page = graph_states.page(values, graph_states.selection_of(query))
        return HttpResponse(orjson.dumps(page), content_type=JSON)


@extend_schema(request=schema_of(ThreadsBody), responses={200: CHANGED_THREADS})
class WorkThreads(AnswerView):
    """Store, copy and delete the states of graphs that are executed outside of runs.

    409 `thread_is_run`: the site keeps the state of a run. Values that are stored for a run fork it: send an
    `Idempotency-Key`, so that a repeated request makes no second fork.
    """

    body_class = ThreadsBody
    takes_idempotency_key = True

    def post(self, request: Request, **_: Any) -> HttpResponse:
        project, post = self.get_work_project(), super().post
        return answer_once(request, self.principal, project, document_of(request), lambda: post(request))

    def answer(self, project: Project, body: ThreadsBody) -> Mapping[str, Any]:
        return graph_threads.perform(project, body.ops, by=name_of(self.principal))
