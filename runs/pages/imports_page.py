"""The imports of a project: the page with the upload form, and the page of one import."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, EnteredProject, Principal, enter
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import id_of, see_other, sentence
from agentops.base.http.methods import require_http_methods, require_POST, require_safe
from agentops.base.refusals import Refusal
from runs.access import import_in, imports_in
from runs.errors import ImportFinished
from runs.external import uploads
from runs.external.import_states import set_progress
from runs.external.importers import formats
from runs.external.uploads import TooManyImports, Upload, UploadInvalid, UploadTooLarge
from runs.models import AgentRun, FileImport
from runs.pages.page_parts import enter_project, project_context, split_page
from runs.upkeep import retention
from runs.upkeep.old_records import IMPORT_KEPT, UPLOAD_KEPT
from timeline.display import clean

PAGE_SIZE = 30


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
        imports = uploads.store(principal, entry.project, files, request.POST.get("format", ""), is_strict=is_strict)
    except (UploadInvalid, UploadTooLarge, TooManyImports) as refusal:
        return _render(request, principal, entry, refusal)
    count = len(imports)
    messages.success(request, f"{count} file{'s' if count > 1 else ''} uploaded.")
    return see_other("runs:imports", entry.project.slug)


@require_safe
def detail(request: HttpRequest, project: str, import_id: UUID) -> HttpResponse:
    """Show an import and its runs."""
    principal, entry = enter_project(request, project, Action.VIEW_IMPORTS)
    file_import = import_in(entry.project, principal, import_id)
    _prepare([file_import])
    rows = AgentRun.objects.filter(project=entry.project, pk__in=file_import.run_ids)
    runs = {str(run.pk): run for run in rows.only("status", "title", "step_count")}
    for run in runs.values():
        run.title = clean(run.title)
    context = {
        **project_context(entry, "imports"),
        "import": file_import,
        "kept_until": retention.kept_until_of(file_import),
        "digest": bytes(file_import.sha256).hex(),
        "runs": [runs[run_id] for run_id in file_import.run_ids if run_id in runs],
        "unnamed": _unlisted_line_count(file_import),
        "unlisted": file_import.run_count - len(file_import.run_ids),
        "deleted": len(file_import.run_ids) - len(runs),
        "may_cancel": Action.IMPORT in entry.actions and not file_import.is_finished,
    }
    return render(request, "runs/imports/import.html", context)


@require_POST
def cancel(request: HttpRequest, project: str, import_id: UUID) -> HttpResponse:
    """Cancel an import, and redirect to its page."""
    principal, entry = enter_project(request, project, Action.IMPORT)
    try:
        uploads.cancel(principal, import_in(entry.project, principal, import_id))
    except ImportFinished as refusal:
        messages.error(request, f"Not cancelled: {refusal}.")
    else:
        messages.success(request, "Import cancelled.")
    return see_other("runs:import", entry.project.slug, import_id)


def _render(
    request: HttpRequest, principal: Principal, entry: EnteredProject, refusal: Refusal | None = None
) -> HttpResponse:
    """Show a page of imports; after a refused upload with the reason, and status 422."""
    before = id_of(request.GET.get("before", ""), "before")
    imports = imports_in(entry.project, principal)
    if before is not None:
        imports = imports.filter(pk__lt=before)
    page, has_more = split_page(imports.defer("run_ids"), PAGE_SIZE)
    _prepare(page)
    context = {
        **project_context(entry, "imports"),
        "imports": page,
        "unfinished": sum(not one.is_finished for one in page),
        "is_first_page": before is None,
        "older": page[-1].pk if has_more else None,
        "error": sentence(refusal) if refusal else "",
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


def _unlisted_line_count(file_import: FileImport) -> int:
    """Return the number of omitted lines that are not listed individually."""
    left_out = file_import.left_out or {"count": 0, "lines": []}
    return int(left_out["count"]) - len(left_out["lines"])
