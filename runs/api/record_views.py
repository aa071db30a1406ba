"""`…/agent-runs/{run}/checkpoints`, `/errors` and `/usage`: what each step leaves behind beside messages."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse

from runs.api.base_views import ApiView
from runs.api.requests.pagination import PAGING, Pages
from runs.api.schema.shared import page_of
from runs.errors import RunNotFound
from runs.queries.json_lists import Where
from runs.queries.record_columns import CHECKPOINTS, ERRORS, TURN_USAGES, USAGE_TOTALS, of_run
from runs.queries.run_columns import with_id


class Checkpoints(ApiView):
    """List the checkpoints of a run: one after each finished step, from which it can be forked."""

    parameters: ClassVar = {"get": PAGING}
    answers: ClassVar = {"get": page_of(CHECKPOINTS)}

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        run = self.look_up_run()
        pages = Pages.of(request, self.query, "checkpoints", run.pk)
        return pages.answer(lambda span: CHECKPOINTS.page(of_run(run, "c"), span))


class Errors(ApiView):
    """List the failed attempts of model calls, tools and steps, including those that a retry resolved."""

    parameters: ClassVar = {"get": PAGING}
    answers: ClassVar = {"get": page_of(ERRORS)}

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        run = self.look_up_run()
        pages = Pages.of(request, self.query, "errors", run.pk)
        return pages.answer(lambda span: ERRORS.page(of_run(run, "e"), span))


class UsageView(ApiView):
    """Get tokens and cost: of the run in `totals`, of each model call in `results`."""

    parameters: ClassVar = {"get": PAGING}
    answers: ClassVar = {"get": page_of(TURN_USAGES, totals=USAGE_TOTALS.schema())}

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        run = self.look_up_run()
        pages = Pages.of(request, self.query, "usage", run.pk)
        totals = USAGE_TOTALS.one(with_id(Where(), "r.id", run.pk))
        if totals is None:  # removed since
            raise RunNotFound("no such run")
        return pages.answer(lambda span: TURN_USAGES.page(of_run(run, "u"), span), head=f'"totals":{totals},')
