"""`…/agent-runs/{run}/checkpoints`, `/errors` and `/usage`: records of the steps of a run."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.response import Response

from runs.api.answers import CheckpointRow, ErrorRow, ModelTotals, UsagePage, UsageRow, UsageTotals, usage_totals
from runs.api.base_views import ListView
from runs.api.requests.queries import RecordPageQuery
from runs.errors import RunNotFound
from runs.models import Checkpoint, RunError, TurnUsage
from runs.queries.model_usage import usage_by_model


class Checkpoints(ListView):
    """List the checkpoints of a run: one after each finished step, from which it can be forked."""

    serializer_class = CheckpointRow

    def get_queryset(self) -> QuerySet[Checkpoint]:
        return Checkpoint.objects.filter(run=self.get_run_key().pk).order_by("step_number")


class Errors(ListView):
    """List the failed attempts of model calls, tools and steps, including attempts that a retry resolved."""

    serializer_class = ErrorRow
    query_class: ClassVar = RecordPageQuery

    def get_queryset(self) -> QuerySet[RunError]:
        return RunError.objects.filter(run=self.get_run_key().pk).order_by("step_number", "pk")


@extend_schema(responses=UsagePage)
class UsageView(ListView):
    """Get tokens and cost: of the run in `totals`, of each model in `models`, of each model call in `results`."""

    serializer_class = UsageRow

    def get_queryset(self) -> QuerySet[TurnUsage]:
        return TurnUsage.objects.filter(run=self.get_run_key().pk).order_by("step_number", "pk")

    def get_paginated_response(self, data: Any) -> Response:
        totals = usage_totals(self.kwargs["run_id"])
        if totals is None:  # removed in the meantime
            raise RunNotFound("no such run")
        response = super().get_paginated_response(data)
        models = ModelTotals(usage_by_model(totals.pk), many=True).data
        response.data = {"totals": UsageTotals(totals).data, "models": models, **response.data}
        return response
