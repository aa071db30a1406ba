"""`…/claude-sessions`: transcripts that claude-agent-sdk stores on this site, to resume sessions on other machines."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.accounts.access import Action
from agentops.base.redaction.redact import BARE
from runs.access import reveal
from runs.actions import claude_transcripts
from runs.actions.claude_transcripts import TranscriptName
from runs.api.base_views import ApiView, ListView
from runs.api.problems import JSON
from runs.api.requests.bodies import LongTextParser, StrictSerializer, StringField, body_of
from runs.api.requests.pagination import object_of
from runs.api.requests.queries import MAX_INTEGER, PageQuery, QuerySerializer, Text, WholeParameter
from runs.external import stored_sessions
from runs.models import ClaudeTranscript
from runs.models.sessions import MAX_NAME

#: Maximum entries of a request.
MAX_ENTRIES = 1_000
_PROJECT_KEY = "The SDK's `project_key`: by default the path of the working directory, with dashes."
_SUBPATH = "For a sub-agent, its path, such as `subagents/agent-1`. Omitted for the session itself."
_STORED = object_of(
    {
        "stored": {"type": "integer", "description": "Number of entries that were new."},
        "known": {"type": "integer", "description": "Number of entries whose `uuid` had been stored before."},
    }
)
_PAGE = object_of(
    {
        "entries": {
            "type": ["array", "null"],
            "items": {"type": "object", "additionalProperties": True},
            "description": "Null if there is no such transcript.",
        },
        "next": {"type": ["integer", "null"], "description": "`after` of the next page; null after the last entry."},
    }
)
_DELETED = object_of({"deleted": {"type": "integer", "description": "Number of transcripts that were deleted."}})
_SUBPATHS = object_of({"subpaths": {"type": "array", "items": {"type": "string"}}})


class NameField(StringField):
    """A part of the name of a transcript."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_blank": False, "min_length": 1, "max_length": MAX_NAME} | options)

    def to_internal_value(self, data: Any) -> str:
        return BARE.clean_text(super().to_internal_value(data))[0]


class NewEntries(StrictSerializer):
    """Entries of one transcript."""

    project_key = NameField(help_text=_PROJECT_KEY)
    session_id = NameField()
    subpath = NameField(required=False, default="", help_text=_SUBPATH)
    entries = serializers.ListField(
        child=serializers.DictField(), max_length=MAX_ENTRIES, help_text="Lines of the transcript, in order."
    )


class SessionRow(serializers.ModelSerializer):  # type: ignore[misc]
    """A session."""

    mtime = serializers.SerializerMethodField(
        help_text="When entries were last appended, in milliseconds since 1970.",
    )

    class Meta:
        model = ClaudeTranscript
        fields = ("project_key", "session_id", "mtime")

    def get_mtime(self, row: ClaudeTranscript) -> int:
        return int(row.modified_at.timestamp() * 1000)


class SessionsQuery(PageQuery):
    project_key = Text(MAX_NAME, help_text=_PROJECT_KEY)


class SessionQuery(QuerySerializer):
    project_key = NameField(help_text=_PROJECT_KEY)
    session_id = NameField()


class TranscriptQuery(SessionQuery):
    subpath = NameField(required=False, default="", help_text=_SUBPATH)


class EntriesQuery(TranscriptQuery):
    after = WholeParameter(0, MAX_INTEGER, default=0, help_text="`next` of the previous page.")


class ClaudeSessions(ListView):
    """List the sessions of claude-agent-sdk that are stored in a project."""

    serializer_class = SessionRow
    query_class: ClassVar = SessionsQuery
    parser_classes = [LongTextParser]
    #: The IDs of entries identify repeated requests.
    takes_idempotency_key = False

    def get_queryset(self) -> QuerySet[Any]:
        sessions = ClaudeTranscript.objects.filter(project=self.get_project(), subpath="").order_by("-pk")
        key = self.query.get("project_key")
        return sessions if key is None else sessions.filter(project_key=key)

    @extend_schema(request=NewEntries, responses={200: OpenApiResponse(_STORED, "Everything is stored.")})
    def post(self, request: Request, **_: Any) -> Response:
        """Append entries to the transcript of a session, all or nothing.

        An entry whose `uuid` is already in the transcript is not stored again. Entries are stored unchanged, with their
        secrets. The transcript becomes a run, without them.
        """
        project, data = self.get_project(Action.OPERATE), body_of(NewEntries, request)
        entries, name = data.pop("entries"), TranscriptName(**data)
        stored = claude_transcripts.append(project.pk, name, entries)
        if stored and (transcript := claude_transcripts.named(project.pk, name).first()) is not None:
            stored_sessions.show(project, transcript, by=self.principal.actor)
        return Response({"stored": stored, "known": len(entries) - stored})


class ClaudeTranscriptView(ApiView):
    """Read a transcript in pages, with its secrets. For admins, and for keys with the scope `secrets`; audited."""

    query_class: ClassVar = EntriesQuery
    write_query_class: ClassVar = TranscriptQuery

    @extend_schema(responses={200: OpenApiResponse(_PAGE, "Entries of the transcript, oldest first.")})
    def get(self, request: Request, **_: Any) -> HttpResponse:
        project = self.get_project(Action.REVEAL)
        after = self.query.pop("after")
        transcript = claude_transcripts.named(project.pk, TranscriptName(**self.query)).first()
        headers = {"Cache-Control": "no-store"}
        if transcript is None:
            return HttpResponse('{"entries":null,"next":null}', content_type=JSON, headers=headers)
        reveal(self.principal, project.pk, transcript)
        page = claude_transcripts.page(transcript, after=after)
        text = f'{{"entries":[{",".join(page.entries)}],"next":{json.dumps(page.next)}}}'
        return HttpResponse(text, content_type=JSON, headers=headers)

    @extend_schema(
        parameters=[TranscriptQuery],
        responses={200: OpenApiResponse(_DELETED, "The transcript does not exist any more.")},
    )
    def delete(self, request: Request, **_: Any) -> Response:
        """Delete a transcript. With the transcript of a session, those of its sub-agents are deleted, too."""
        project = self.get_project(Action.OPERATE)
        deleted = claude_transcripts.delete(project, TranscriptName(**self.query), by=self.principal)
        return Response({"deleted": deleted})


@extend_schema(responses={200: OpenApiResponse(_SUBPATHS, "Names of the transcripts of its sub-agents.")})
class ClaudeSubpaths(ApiView):
    """List the sub-agents of a session that have a transcript."""

    query_class: ClassVar = SessionQuery

    def get(self, request: Request, **_: Any) -> Response:
        transcripts = claude_transcripts.of_session(self.get_project().pk, **self.query).exclude(subpath="")
        return Response({"subpaths": list(transcripts.order_by("subpath").values_list("subpath", flat=True))})
