"""`…/imports`: uploaded files with transcripts of other programs, which workers import as runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from tempfile import SpooledTemporaryFile
from typing import IO, Any, ClassVar

from django.conf import settings
from django.db.models import QuerySet
from django.http import HttpResponse, UnreadablePostError
from django.urls import reverse
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.accounts.access import Action
from agentops.base.refusals import Invalid, Refusal
from runs.access import import_in, imports_in
from runs.api.action_views import ActionView
from runs.api.base_views import ApiView, ListView
from runs.api.problems import echo
from runs.api.requests.bodies import Choice
from runs.api.requests.inputs import EmptyBody
from runs.api.requests.queries import QuerySerializer, Text
from runs.external import uploads
from runs.external.import_states import set_progress
from runs.external.uploads import Upload, UploadTooLarge
from runs.models import FileImport, ImportState
from runs.upkeep import retention

FORM, URL_FORM = "multipart/form-data", "application/x-www-form-urlencoded"
#: A larger body is written to a temporary file.
MEMORY_BYTES = 64 * 1024
#: Bytes of a body that are read at a time.
READ_BYTES = 1024 * 1024
_STRICT = "Refuse a file that has a damaged line, instead of leaving the line out."
_FORMAT = "Name of the format; by default, it is recognised by the content."
UPLOAD_BODY: dict[str, Any] = {
    FORM: {
        "type": "object",
        "properties": {
            "file": {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1},
            "format": {"type": "string", "description": _FORMAT},
            "strict": {"type": "boolean", "description": _STRICT, "default": False},
        },
        "required": ["file"],
        "additionalProperties": False,
    },
    "application/octet-stream": {"type": "string", "format": "binary"},
}


class LeftOutRow(serializers.Serializer):  # type: ignore[misc]
    """A line that was left out, entirely or in part."""

    line = serializers.IntegerField(help_text="From 1.")
    reason = serializers.CharField()


class ImportRow(serializers.ModelSerializer):  # type: ignore[misc]
    """An uploaded file and its import."""

    sha256 = serializers.SerializerMethodField(help_text="SHA-256 of the file, in hexadecimal digits.")
    state = serializers.ChoiceField(choices=ImportState.choices)
    events_done = serializers.IntegerField(help_text="Events that are imported so far.")
    strict = serializers.BooleanField(source="is_strict", help_text="Whether the file is refused if a line is damaged.")
    left_out = serializers.SerializerMethodField(help_text="Damaged lines of the file that were not imported.")
    left_out_lines = serializers.SerializerMethodField(help_text="The first 20 of them, with the reason.")
    cut_line = serializers.SerializerMethodField(
        help_text="Number of the last line, if it is incomplete. This is no damage: a later import of the longer file "
        "includes the line."
    )

    class Meta:
        model = FileImport
        fields: tuple[str, ...] = (
            *("id", "file_name", "size", "sha256", "format", "state", "events_done", "events", "new_events"),
            *("new_runs", "continued_runs", "unchanged_runs", "error", "error_code"),
            *("strict", "left_out", "left_out_lines", "cut_line"),
            *("created_by", "created_at", "started_at", "finished_at"),
        )
        extra_kwargs: ClassVar = {
            "size": {"help_text": "In bytes."},
            "events": {"help_text": "Events of the file. Null until it was read."},
            "new_events": {"help_text": "Events that the project did not have. Null until the import is done."},
            "new_runs": {"help_text": "Runs that the import has created."},
            "continued_runs": {"help_text": "Runs that the project had, and that got further events."},
            "unchanged_runs": {"help_text": "Runs that the project had completely."},
            "error": {"help_text": "Why it was refused or failed, with the file, and the line or JSON pointer."},
            "error_code": {
                "help_text": "`import_too_large`, `nothing_to_import` or `invalid_file` if it was refused; else empty."
            },
        }

    def get_sha256(self, file_import: FileImport) -> str:
        return bytes(file_import.sha256).hex()

    def get_left_out(self, file_import: FileImport) -> int:
        return int((file_import.left_out or {}).get("count", 0))

    @extend_schema_field(LeftOutRow(many=True))
    def get_left_out_lines(self, file_import: FileImport) -> list[dict[str, Any]]:
        return list((file_import.left_out or {}).get("lines", []))

    def get_cut_line(self, file_import: FileImport) -> int | None:
        return (file_import.left_out or {}).get("cut_line")


class ImportAnswer(ImportRow):
    """An uploaded file and its import, with the runs of the file."""

    kept_until = serializers.SerializerMethodField(
        help_text="When retention deletes the runs, unless they get further events. Null: never, or not imported."
    )

    run_ids = serializers.ListField(
        child=serializers.UUIDField(), help_text="IDs of its first runs, at most 100, once the import is done."
    )

    class Meta(ImportRow.Meta):
        fields = (*ImportRow.Meta.fields, "run_ids", "kept_until")

    def get_kept_until(self, file_import: FileImport) -> datetime | None:
        return retention.kept_until_of(file_import)


class ImportsAnswer(serializers.Serializer):  # type: ignore[misc]
    """The imports of the uploaded files, in the order of the upload."""

    results = ImportRow(many=True)


class UploadQuery(QuerySerializer):
    name = Text(help_text="Name of the file, if the body is the file itself.")
    format = Text(max_length=64, help_text=_FORMAT)
    strict = Choice(choices=["true", "false"], required=False, help_text=_STRICT)


class Imports(ListView):
    """List the imports of a project, newest first. A key without the scope `read` or `write` sees only its own."""

    serializer_class = ImportRow
    write_query_class = UploadQuery
    #: A repeated upload is harmless: importing a file again adds only new events.
    takes_idempotency_key = False

    def get_queryset(self) -> QuerySet[FileImport]:
        return imports_in(self.get_project(Action.VIEW_IMPORTS), self.principal)

    def paginate_queryset(self, queryset: Any) -> list[FileImport]:
        rows: list[FileImport] = super().paginate_queryset(queryset)
        set_progress(rows)
        return rows

    @extend_schema(
        request=UPLOAD_BODY,
        parameters=[UploadQuery],
        responses={202: OpenApiResponse(ImportsAnswer, "The files are stored. A worker imports them in this order.")},
    )
    def post(self, request: Request, **_: Any) -> Response:
        """Upload files with transcripts of other programs, to be imported as runs.

        The body is a form with one or more files, or a single file. The answer is sent when the files are stored. Then
        a worker imports each file as a whole, or refuses it, and deletes its content.
        """
        project = self.get_project(Action.IMPORT)
        _check_type(request)
        if request._request.content_type == FORM:
            files = _files(request)
            imports = uploads.store(self.principal, project, files, self._format(), is_strict=self._is_strict())
        else:
            with _spooled(request) as content:
                upload = Upload(self.query.get("name", "upload"), content, content.seek(0, 2))
                imports = uploads.store(self.principal, project, [upload], self._format(), is_strict=self._is_strict())
        return Response({"results": ImportRow(imports, many=True).data}, 202, headers=self._location(imports))

    def _format(self) -> str:
        """Return the name of the format from the form or the query; empty if neither has one."""
        return str(self.request._request.POST.get("format") or self.query.get("format", ""))

    def _is_strict(self) -> bool:
        """Return the value of `strict` in the form or the query. Raises `Invalid`."""
        text = self.request._request.POST.get("strict")
        if text not in (None, "true", "false"):
            raise Invalid(f"strict must be true or false, not {echo(text)}", code="invalid_value")
        return (text or self.query.get("strict")) == "true"

    def _location(self, imports: list[FileImport]) -> dict[str, str]:
        """Return the Location header with the URL of the import, if there is exactly one."""
        if len(imports) != 1:
            return {}
        return {"Location": reverse("api:import", args=[self.kwargs["project"], imports[0].pk])}


class ImportDetail(ApiView):
    """Show an import: its state, its progress and its runs."""

    serializer_class = ImportAnswer

    @extend_schema(responses=ImportAnswer)
    def get(self, request: Request, **_: Any) -> HttpResponse:
        project = self.get_project(Action.VIEW_IMPORTS)
        file_import = import_in(project, self.principal, self.kwargs["import_id"])
        set_progress([file_import])
        return self.masked_response(ImportAnswer(file_import).data)


@extend_schema(responses=OpenApiResponse(ImportAnswer, "The import, which is cancelled."))
class CancelImport(ActionView):
    """Cancel an import that is waiting or running. Nothing of the file is imported, and its content is deleted.

    Cancelling it again changes nothing. 409 `import_finished` if the import is done, was refused, or has failed.
    """

    serializer_class = EmptyBody
    is_body_optional = True

    def post(self, request: Request, **_: Any) -> HttpResponse:
        project = self.get_project(Action.IMPORT)
        file_import = import_in(project, self.principal, self.kwargs["import_id"])
        return self.run_once(project, lambda _: self._cancel(file_import))

    def _cancel(self, file_import: FileImport) -> Response:
        cancelled = uploads.cancel(self.principal, file_import)
        set_progress([cancelled])
        return Response(ImportAnswer(cancelled).data)


def _check_type(request: Request) -> None:
    """Raise `Refusal` for an encoded body, and for a form that cannot contain files."""
    coding = request.headers.get("Content-Encoding", "").strip().lower()
    if coding not in ("", "identity"):
        text = f"the body must not be encoded as {echo(coding)}"
        raise Refusal(text, code="unsupported_encoding", status=415, headers={"Accept-Encoding": "identity"})
    if request._request.content_type == URL_FORM:
        # curl sends this type with any body by default.
        text = f"send the file as application/octet-stream, or files as {FORM}, not {URL_FORM}"
        headers = {"Accept-Post": f"{FORM}, application/octet-stream"}
        raise Refusal(text, code="unsupported_media_type", status=415, headers=headers)


def _files(request: Request) -> list[Upload]:
    """Return the files of a form. Raises `Refusal` for other fields."""
    form, files = request._request.POST, request._request.FILES
    unknown = [
        *(name for name in form if name not in ("format", "strict")),
        *(name for name in files if name != "file"),
    ]
    if unknown:
        text = f"there is no field {echo(unknown[0])} here; known are file, format and strict"
        raise Invalid(text, code="unknown_field", pointer=f"/{unknown[0][:64]}")
    return [Upload(file.name or "", file.file, file.size or 0) for file in files.getlist("file")]


@contextmanager
def _spooled(request: Request) -> Iterator[IO[bytes]]:
    """Yield the body as a file, on the disk unless it is short. Raises `UploadTooLarge` or `Refusal`."""
    size, limit = 0, settings.AGENTOPS_UPLOAD_MIB * uploads.MIB
    with SpooledTemporaryFile(max_size=MEMORY_BYTES) as content:
        try:
            while piece := request._request.read(READ_BYTES):
                size += len(piece)
                if size > limit:
                    raise UploadTooLarge(f"the file has more than {settings.AGENTOPS_UPLOAD_MIB} MiB")
                content.write(piece)
        except UnreadablePostError:
            raise Refusal("the body is shorter than its Content-Length", code="incomplete_body") from None
        if size < int(request.META.get("CONTENT_LENGTH") or 0):
            raise Refusal("the body is shorter than its Content-Length", code="incomplete_body")
        yield content
