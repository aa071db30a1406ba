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
    """The points from which a run can go on, be rewound or forked: one after each finished step."""

    parameters: ClassVar = {"get": PAGING}
    answers: ClassVar = {"get": page_of(CHECKPOINTS)}

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        run = self.look_up_run()
        pages = Pages.of(request, self.query, "checkpoints", run.pk)
        return pages.answer(lambda span: CHECKPOINTS.page(of_run(run, "c"), span))


class Errors(ApiView):
    """Every failed attempt of a model call, a tool or a step; also of those that a retry made good."""

    parameters: ClassVar = {"get": PAGING}
    answers: ClassVar = {"get": page_of(ERRORS)}

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        run = self.look_up_run()
        pages = Pages.of(request, self.query, "errors", run.pk)
        return pages.answer(lambda span: ERRORS.page(of_run(run, "e"), span))


class UsageView(ApiView):
    """Tokens and cost: of the whole run in `totals`, and of each model call in `results`."""

    parameters: ClassVar = {"get": PAGING}
    answers: ClassVar = {"get": page_of(TURN_USAGES, totals=USAGE_TOTALS.schema())}

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        run = self.look_up_run()
        pages = Pages.of(request, self.query, "usage", run.pk)
        totals = USAGE_TOTALS.one(with_id(Where(), "r.id", run.pk))
        if totals is None:  # removed since
            raise RunNotFound("no such run")
        return pages.answer(lambda span: TURN_USAGES.page(of_run(run, "u"), span), head=f'"totals":{totals},')
