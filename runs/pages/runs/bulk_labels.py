"""Change labels of several runs of the list."""

from __future__ import annotations

from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import reverse

from agentops.accounts.access import Action, project_for
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_POST
from agentops.base.refusals import InvalidQuery, Refusal
from runs.actions.annotations import labels
from runs.models import AgentRun
from runs.pages.forms import fields
from runs.pages.runs.bulk_resume import MAX_RUNS
from runs.pages.runs.list_query import ListQuery


@require_POST
def change(request: HttpRequest, project: str) -> HttpResponse:
    """Add a label to the selected runs, or remove it with `do=remove-label`, and return to the list."""
    principal = principal_of(request)
    owner = project_for(principal, project, Action.OPERATE)
    form = request.POST
    ids = selected_ids(form)
    label = fields.line(form.get("new_label", ""))
    is_removal = form.get("do") == "remove-label"
    # Leave out runs of other projects and removed runs.
    run_ids = list(AgentRun.objects.filter(project=owner, pk__in=ids).values_list("pk", flat=True))
    try:
        if not run_ids:
            raise InvalidQuery("select at least one run")
        if not label:
            raise InvalidQuery("enter a label")
        changes = {"add": [], "remove": [label]} if is_removal else {"add": [label], "remove": []}
        count = labels.change_labels_of_many(run_ids, by=principal, **changes)
        verb = "removed from" if is_removal else "added to"
        messages.success(request, f"Label “{label}” {verb} {count} run{'' if count == 1 else 's'}.")
    except Refusal as refusal:
        messages.error(request, f"Labels not changed: {refusal}.")
    return HttpResponse(status=303, headers={"Location": list_of(owner, form)})


def list_of(project: Project, form: QueryDict) -> str:
    """Return the URL of the list that contained the form."""
    query = ListQuery.parse(_list_query(form))
    parameters = query.query_string(before=query.before, after=query.after)
    return reverse("runs:list", args=[project.slug]) + (parameters or "?all=1")


def selected_ids(form: QueryDict) -> list[UUID]:
    """Return the IDs of the selected runs. Raises `InvalidQuery`."""
    try:
        ids = [UUID(text) for text in dict.fromkeys(form.getlist("id"))]
    except ValueError:
        raise InvalidQuery("id must be a run ID") from None
    if len(ids) > MAX_RUNS:
        raise InvalidQuery(f"at most {MAX_RUNS} runs can be selected at once, not {len(ids)}")
    return ids


def _list_query(form: QueryDict) -> QueryDict:
    """Return the query of the list, whose parameters are among the fields of the form."""
    own = {"id", "new_label", "do", "csrfmiddlewaretoken"}
    return QueryDict(urlencode([(name, value) for name in form if name not in own for value in form.getlist(name)]))
