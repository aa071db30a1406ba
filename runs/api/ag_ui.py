"""`…/agents/{agent}/ag-ui`: start or continue a run for an AG-UI client, and stream its events.

timeline.live serves the stream, as for `…/agent-runs/{run}/events/stream?dialect=ag-ui`.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from agentops.accounts.access import Action
from agentops.accounts.models import audit_models
from runs.actions import ag_ui_runs
from runs.actions.ag_ui_answers import InterruptAnswer
from runs.actions.ag_ui_runs import AgUiRequest, ClientMessage
from runs.api.agent_views import agent_in
from runs.api.base_views import ApiView
from runs.api.requests.bodies import Choice, Identifier, LongTextParser, OpenSerializer, StringField, body_of
from runs.lifecycle import inbox
from runs.lifecycle.creation import Media
from runs.models import AgentRun
from runs.models.external import MAX_CLIENT_ID
from runs.queries.ag_ui_dialect import ag_ui_texts
from runs.queries.json_columns import to_json
from runs.tools import front_end_tools
from runs.tools.front_end_tools import InvalidFrontEndTool
from timeline.ag_ui_state import ends_run
from timeline.live.access_watch import Permit
from timeline.live.streams import Piece, Rendering, StreamCursor, cursor_of, log_stream
from timeline.models import Event

#: Media type that models accept → the first bytes of such files.
SIGNATURES: dict[str, tuple[bytes, ...]] = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
    "application/pdf": (b"%PDF-",),
}
#: Maximum images and documents of a message.
MAX_MEDIA = 20


class Content(NamedTuple):
    """The content of a user message. The model gets the media after the text."""

    text: str
    media: list[Media]


def content_of(value: Any, pointer: str) -> Content:
    """Return the content of a user message. `pointer`: its JSON pointer.

    Raises `ValidationError` if no model accepts a part of it.
    """
    parts = [{"type": "text", "text": value}] if isinstance(value, str) else value
    if not isinstance(parts, list):
        raise _refusal("the content of a user message must be text, or a list of parts", pointer)
    texts: list[str] = []
    media: list[Media] = []
    for number, part in enumerate(parts):
        match _part(part, f"{pointer}/{number}"):
            case str(text):
                texts.append(text)
            case medium:
                media.append(medium)
    if len(media) > MAX_MEDIA:
        raise _refusal(f"a message must have at most {MAX_MEDIA} images and documents", pointer)
    return Content("\n".join(texts), media)


def _part(part: Any, pointer: str) -> str | Media:
    """Return a part of a message as text or as media. Raises `ValidationError`."""
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image" | "document", "source": {"type": "data", "value": str(data), "mimeType": str(mime_type)}}:
            return _media(data, mime_type, pointer)
        case {"type": "audio" | "video" as name}:
            raise _refusal(f"{name} is not supported: send text, images or documents", pointer)
        case {"type": "image" | "document"}:
            raise _refusal("media must be in the request, as data with a mimeType: nothing is fetched", pointer)
    raise _refusal("a part of a user message must be text, an image or a document", pointer)


def _media(data: str, media_type: str, pointer: str) -> str | Media:
    """Return a document in base64: as text if it is text, so that its secrets are masked, otherwise as media."""
    media_type = media_type.partition(";")[0].strip().lower()
    try:
        content = b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise _refusal("the data is not base64", pointer) from None
    if media_type.startswith("text/"):
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise _refusal("the document is not text in UTF-8", pointer) from None
    if media_type not in SIGNATURES:
        supported = ", ".join([*SIGNATURES, "text/*"])
        raise _refusal(f"the type {media_type[:64]!r} is not supported; supported are {supported}", pointer)
    if not content.startswith(SIGNATURES[media_type]):
        raise _refusal(f"the data is not of the type {media_type}", pointer)
    return {"kind": "binary", "data": data, "media_type": media_type}


def _refusal(text: str, pointer: str) -> ValidationError:
    """Return DRF's error for the value with this JSON pointer."""
    error: Mapping[str, Any] = {"": [text]}
    for step in reversed(pointer.split("/")[1:]):
        error = {step: error.get("", error)}
    return ValidationError(error, "unsupported_content")


# --- Requests ---

#: Roles of messages that clients keep, but that are no part of the conversation.
_IGNORED_ROLES = ("activity", "reasoning")
#: Roles of messages that come from this site: a client that has one has the conversation of its thread.
_ROLES_OF_SITE = ("assistant", "tool")


class AgUiMessage(OpenSerializer):
    id = StringField(help_text="The client's ID of the message.")
    role = StringField()
    content = serializers.JSONField(required=False, help_text="A text, or a list of texts, images and documents.")
    toolCallId = StringField(required=False, allow_null=True, help_text="Of a message with the role `tool`.")
    error = StringField(required=False, allow_null=True, help_text="Why a tool of the front end has failed.")


class AgUiContext(OpenSerializer):
    description = StringField()
    value = StringField()


class AgUiTool(OpenSerializer):
    name = StringField()
    description = StringField(allow_blank=True)
    parameters = serializers.JSONField(required=False, allow_null=True, help_text="A JSON Schema of an object.")


class AgUiAnswer(OpenSerializer):
    interruptId = StringField(max_length=MAX_CLIENT_ID)
    status = Choice(choices=["resolved", "cancelled"])
    payload = serializers.JSONField(
        required=False,
        allow_null=True,
        help_text="The answer: a text for a question (the agent gets other values as JSON), or what the interrupt's "
        "`responseSchema` describes for a decision about a tool call.",
    )


class RunAgentInput(OpenSerializer):
    """AG-UI's RunAgentInput. Other fields are ignored, as the protocol requires."""

    threadId = Identifier(MAX_CLIENT_ID, help_text="A new thread starts a run, a known one is continued.")
    runId = Identifier(MAX_CLIENT_ID, help_text="A repeated `runId` of a thread does nothing twice.")
    messages = serializers.ListField(
        child=AgUiMessage(), help_text="The user messages at the end are new. Earlier messages are ignored."
    )
    tools = serializers.ListField(
        child=AgUiTool(),
        required=False,
        default=list,
        help_text="Tools that the front end runs, for a run that begins or is resumed with this request.",
    )
    context = serializers.ListField(
        child=AgUiContext(), required=False, default=list, help_text="Added to the new message."
    )
    resume = serializers.ListField(
        child=AgUiAnswer(), required=False, default=list, max_length=1, help_text="The answer to the open interrupt."
    )
    state = serializers.JSONField(required=False, allow_null=True, help_text="Ignored: runs have a state of their own.")
    forwardedProps = serializers.JSONField(required=False, allow_null=True, help_text="Ignored.")

    def validate_tools(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the valid tools of the front end. Raises `ValidationError`, with the index of the invalid tool."""
        try:
            return front_end_tools.checked(tools)
        except InvalidFrontEndTool as error:
            fault: Any = {error.name: [str(error)]} if error.name else [str(error)]
            raise ValidationError({error.index: fault}, error.code) from None

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        messages, context = _last_messages(attrs["messages"]), _context(attrs["context"])
        if sum(len(message.text) for message in messages) + len(context) > inbox.MAX_MESSAGE:
            text = f"the new message must have at most {inbox.MAX_MESSAGE} characters"
            raise ValidationError({"messages": text}, "max_length")
        sent = attrs["messages"]
        return {
            **attrs,
            "messages": messages,
            "context": context,
            "tool_results": _tool_results(sent),
            "has_conversation": any(message["role"] in _ROLES_OF_SITE for message in sent),
        }


def request_of(body: Mapping[str, Any]) -> AgUiRequest:
    """Return the request in a validated body."""
    answer = None
    if body["resume"]:
        [entry] = body["resume"]
        answer = InterruptAnswer(entry["interruptId"], entry["status"] == "cancelled", entry.get("payload"))
    return AgUiRequest(
        thread_id=body["threadId"],
        run_id=body["runId"],
        messages=body["messages"],
        context=body["context"],
        tools=body["tools"],
        tool_results=body["tool_results"],
        answer=answer,
    )


def _context(entries: list[dict[str, Any]]) -> str:
    """Return the text that is appended to the new message; empty without entries."""
    lines = [f"- {entry['description']}: {entry['value']}" for entry in entries]
    return "\n".join(["\n\nContext:", *lines]) if lines else ""


def _last_messages(messages: list[dict[str, Any]]) -> list[ClientMessage]:
    """Return the user messages at the end of the conversation, which are new. Raises `ValidationError`."""
    last: list[ClientMessage] = []
    for index in reversed(range(len(messages))):
        message = messages[index]
        if message["role"] in _IGNORED_ROLES:
            continue
        if message["role"] != "user":
            break
        content = content_of(message.get("content"), f"/messages/{index}/content")
        last.insert(0, ClientMessage(_message_id(message["id"], index), content.text, content.media))
    return last


def _tool_results(messages: list[dict[str, Any]]) -> dict[str, str]:
    """Return the results of tool calls as texts, by call ID: calls of the front end and of the site."""
    results: dict[str, str] = {}
    for message in messages:
        call_id, content = message.get("toolCallId"), message.get("content")
        if message["role"] == "tool" and isinstance(call_id, str):
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            error = message.get("error")
            results[call_id] = f"Error: {error}\n{text}" if isinstance(error, str) and error else text
    return results


def _message_id(client_id: str, index: int) -> str:
    """Return a valid ID of the message at `index`. Raises `ValidationError`."""
    try:
        return str(Identifier(MAX_CLIENT_ID).run_validation(client_id))
    except ValidationError as error:
        raise ValidationError({"messages": {index: {"id": error.detail}}}) from None


# --- The view ---

#: Notice of timeline.live about a stream that cannot continue → its text. AG-UI has only errors of runs for this.
_NOTICES = {
    "stream-reset": "the position in the stream is no longer valid: send the request again",
    "auth-revoked": "access to the run has ended",
}


def _in_ag_ui(log_id: UUID, batch: Sequence[Event], *, has_snapshots: bool = False) -> list[Piece]:
    """Return the AG-UI messages of each event of a batch."""
    texts_by_event = ag_ui_texts(log_id, batch, has_snapshots=has_snapshots)
    return [{"message": texts} if texts else {} for texts in texts_by_event]


def _notice(name: str, data: str, cursor: StreamCursor | None) -> bytes:
    """Return a notice about the stream as an error of the AG-UI run.

    Empty for other notices, such as the end of the log, which AG-UI has already reported.
    """
    if name not in _NOTICES:
        return b""
    error = {"type": "RUN_ERROR", "message": _NOTICES[name], "code": name.replace("-", "_")}
    return f"data: {to_json(error)}\n\n".encode()


#: A stream in AG-UI. It ends with its AG-UI run, because clients wait for its end, and do not reconnect automatically.
AG_UI = Rendering("ag-ui", _in_ag_ui, closes_after=ends_run, notice=_notice, is_reopened=False)
#: The same for a client that does not have the conversation of its thread.
AG_UI_WITH_SNAPSHOTS = replace(AG_UI, name="ag-ui-with-snapshots", render=partial(_in_ag_ui, has_snapshots=True))
_LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID", str, OpenApiParameter.HEADER, description="Continue after the event with this `id`."
)
_EVENTS = {"type": "string", "description": "Server-sent events, an AG-UI event each."}


class AgUiRunView(ApiView):
    """Run an agent for an AG-UI client."""

    http_method_names = ["post"]
    serializer_class = RunAgentInput
    parser_classes = [LongTextParser]
    accepts_any_type = True
    #: The client's `runId` identifies repeated requests.
    takes_idempotency_key = False

    @extend_schema(
        parameters=[_LAST_EVENT_ID],
        responses={(200, "text/event-stream"): OpenApiResponse(_EVENTS, "The events of the run.")},
    )
    def post(self, request: Request, **_: Any) -> HttpResponse:
        """Start or continue the run of an AG-UI thread, and stream its events.

        The stream ends with `RUN_FINISHED` or `RUN_ERROR`. The run itself does not depend on it: after a lost
        connection, send the same request again. Repeating it has no further effect, and streams the events from the
        start, or after `Last-Event-ID`.
        """
        project = self.get_project(Action.OPERATE)
        agent = agent_in(project, self.kwargs["agent"])
        body = body_of(RunAgentInput, request)
        if body["resume"]:
            self.get_project(Action.APPROVE)
        started = ag_ui_runs.start(self.principal, project, agent, request_of(body))
        run = AgentRun.objects.select_related("log").get(pk=started.run_id)
        session_key = request.session.session_key if self.principal.user_id is not None else None
        permit = Permit(self.principal, project.pk, session_key)
        after = cursor_of(request)
        if after.seq < started.after_seq:
            after = StreamCursor(started.after_seq, audit_models.current_incarnation())
        rendering = AG_UI if body["has_conversation"] else AG_UI_WITH_SNAPSHOTS
        return log_stream(run.log, after, rendering, permit, ended=run.state.terminal)
