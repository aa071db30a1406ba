"""`POST /api/internal/agent-events`: the events of runners, one or many."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from agentops.base.refusals import Invalid, Refusal
from runs import chaos
from runs.api.ingest.event_results import ALL_STORED, BATCH_ANSWER, EVENTS_BODY, SOME_REJECTED, answer, result_of
from runs.api.ingest.ingest_view import IngestView, count_events, give_back_events
from runs.api.requests.bodies import document_of
from runs.external.ingest import MAX_EVENTS, EventResult, Sender, record


class AgentEvents(IngestView):
    """Store events of external runners: one event, or `{"events": [...]}` with at most 500.

    The answer comes after the commit. Each event is accepted with its sequence number, or is a duplicate of a stored
    one, or is rejected with a code. Events of one run are numbered in the order of the request.
    """

    @extend_schema(request=EVENTS_BODY, responses={200: ALL_STORED, 207: SOME_REJECTED, 422: BATCH_ANSWER})
    def post(self, request: Request, **_: Any) -> HttpResponse:
        project = self.get_ingest_project()
        document = document_of(request)
        sender = Sender(project, self.principal.actor)
        if "events" not in document:
            return self._single(sender, document)
        documents = _batch(document)
        count_events(request._request, project.pk, _runs_of(documents))
        self.has_recorded = True
        results = self._record(sender, documents)
        chaos.point("ingest.committed")
        answers = [result_of(result) for result in results]
        counts = Counter(answer["status"] for answer in answers)
        rejected = counts["rejected"]
        status = 200 if not rejected else 422 if rejected == len(answers) else 207
        body = {"results": answers, **{name: counts[name] for name in ("accepted", "duplicate", "rejected")}}
        return answer(body, status)

    def _single(self, sender: Sender, document: dict[str, Any]) -> HttpResponse:
        if not document:
            raise Invalid("the body is an empty object: send an event, or events", code="events_required")
        count_events(self.request._request, sender.project.pk, _runs_of([document]))
        self.has_recorded = True
        [result] = self._record(sender, [document])
        chaos.point("ingest.committed")
        if result.error is not None:
            result.error.data |= {} if result.seq is None else {"seq": result.seq}
            raise result.error
        return answer(result_of(result))

    def _record(self, sender: Sender, documents: list[Any]) -> list[EventResult]:
        results = record(sender, documents)
        too_large = [
            one
            for one, result in zip(documents, results, strict=True)
            if result.error is not None and result.error.status == 413
        ]
        give_back_events(self.request._request, sender.project.pk, _runs_of(too_large))
        return results


def _runs_of(documents: list[Any]) -> Counter[str]:
    """Return the number of events by the reference of their run."""
    return Counter(str(one.get("runId") or one.get("run_id")) for one in documents if isinstance(one, dict))


def _batch(document: dict[str, Any]) -> list[Any]:
    unknown = sorted(document.keys() - {"events"})
    if unknown:
        raise Invalid(f"beside events, there is no field {unknown[0][:64]!r}", code="unknown_field")
    documents = document["events"]
    if not isinstance(documents, list):
        raise Invalid("events must be a list", code="events_required")
    if not documents:
        raise Invalid("events is empty", code="events_empty")
    if len(documents) > MAX_EVENTS:
        text = f"{len(documents)} events in a batch: send at most {MAX_EVENTS}"
        raise Refusal(text, code="batch_too_large", status=413)
    return documents
