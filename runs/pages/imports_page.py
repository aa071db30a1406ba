"""The imports of a project: the page with the upload form, and the page of one import."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from agentops.accounts.access import Action, EnteredProject, Principal, enter
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_http_methods, require_POST, require_safe
from agentops.base.refusals import InvalidQuery, Refusal
from runs.access import import_in, imports_in
from runs.errors import ImportFinished
from runs.external.importers import formats
from runs.external.uploads import cancelling, intake
from runs.external.uploads.import_progress import set_progress
from runs.external.uploads.intake import TooManyImports, Upload, UploadInvalid, UploadTooLarge
from runs.models import AgentRun, FileImport
from runs.upkeep import retention
from runs.upkeep.old_records import IMPORT_KEPT, UPLOAD_KEPT
from timeline.display import clean

PAGE_SIZE = 30
#: Maximum entries of a menu.
MAX_CHOICES = 200


@require_http_methods(["GET", "HEAD", "POST"])
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show a page of imports, newest first; or store the uploaded files. Status 422 if they cannot be stored."""
    principal = principal_of(request)
    if request.method != "POST":
        return _render(request, principal, enter(principal, project, Action.VIEW_IMPORTS))
    entry = enter(principal, project, Action.IMPORT)
    # Not a Django form, which would read the files a second time.
    files = [Upload(one.name or "", one.file, one.size or 0) for one in request.FILES.getlist("file") if one.file]
    try:
        is_strict = request.POST.get("strict") == "true"
        imports = intake.store(principal, entry.project, files, request.POST.get("format", ""), is_strict=is_strict)
    except (UploadInvalid, UploadTooLarge, TooManyImports) as refusal:
        return _render(request, principal, entry, refusal)
    count = len(imports)
    messages.success(request, f"{count} file{'s' if count > 1 else ''} uploaded.")
    return HttpResponse(status=303, headers={"Location": reverse("runs:imports", args=[entry.project.slug])})


@require_safe
def detail(request: HttpRequest, project: str, import_id: UUID) -> HttpResponse:
    """Show an import and its runs."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.VIEW_IMPORTS)
    file_import = import_in(entry.project, principal, import_id)
    _prepare([file_import])
    rows = AgentRun.objects.filter(project=entry.project, pk__in=file_import.run_ids)
    runs = {str(run.pk): run for run in rows.only("status", "title", "step_count")}
    for run in runs.values():
        run.title = clean(run.title)
    context = {
        **_context(entry),
        "import": file_import,
        "kept_until": retention.kept_until_of(file_import),
        "digest": bytes(file_import.sha256).hex(),
        "runs": [runs[run_id] for run_id in file_import.run_ids if run_id in runs],
        "unnamed": _unnamed(file_import),
        "unlisted": file_import.run_count - len(file_import.run_ids),
        "deleted": len(file_import.run_ids) - len(runs),
        "may_cancel": Action.IMPORT in entry.actions and not file_import.is_finished,
    }
    return render(request, "runs/imports/import.html", context)


@require_POST
def cancel(request: HttpRequest, project: str, import_id: UUID) -> HttpResponse:
    """Cancel an import, and redirect to its page."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.IMPORT)
    try:
        cancelling.cancel(principal, import_in(entry.project, principal, import_id))
    except ImportFinished as refusal:
        messages.error(request, f"Not cancelled: {refusal}.")
    else:
        messages.success(request, "Import cancelled.")
    return HttpResponse(status=303, headers={"Location": reverse("runs:import", args=[entry.project.slug, import_id])})


def _render(
    request: HttpRequest, principal: Principal, entry: EnteredProject, refusal: Refusal | None = None
) -> HttpResponse:
    before = _before(request.GET.get("before", ""))
    imports = imports_in(entry.project, principal)
    if before is not None:
        imports = imports.filter(pk__lt=before)
    # One row more than a page, to know whether there is a next page.
    batch = list(imports.defer("run_ids")[: PAGE_SIZE + 1])
    page = batch[:PAGE_SIZE]
    _prepare(page)
    context = {
        **_context(entry),
        "imports": page,
        "unfinished": sum(not one.is_finished for one in page),
        "is_first_page": before is None,
        "older": page[-1].pk if len(batch) > PAGE_SIZE else None,
        "error": f"{str(refusal)[:1].upper()}{str(refusal)[1:]}." if refusal else "",
        "may_import": Action.IMPORT in entry.actions,
        "format": request.POST.get("format", ""),
        "strict": request.POST.get("strict") == "true",
        "formats": [(importer.name, importer.title) for importer in formats.importers()],
        "upload_mib": settings.AGENTOPS_UPLOAD_MIB,
        "upload_days": UPLOAD_KEPT.days,
        "import_days": IMPORT_KEPT.days,
    }
    return render(request, "runs/imports/imports.html", context, status=422 if refusal else 200)


def _prepare(imports: list[FileImport]) -> None:
    """Set the progress, and mask secrets that an earlier version may have stored."""
    set_progress(imports)
    for one in imports:
        one.file_name, one.error = clean(one.file_name), clean(one.error)


def _unnamed(file_import: FileImport) -> int:
    """Return the number of omitted lines that are not listed individually."""
    left_out = file_import.left_out or {"count": 0, "lines": []}
    return int(left_out["count"]) - len(left_out["lines"])


def _context(entry: EnteredProject) -> dict[str, Any]:
    projects = entry.visible.order_by("name", "pk")[:MAX_CHOICES]
    may_manage = Action.MANAGE in entry.actions
    return {"project": entry.project, "projects": projects, "may_manage": may_manage, "section": "imports"}


def _before(text: str) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        raise InvalidQuery(f"before must be the ID of an import, not {text[:64]!r}") from None
