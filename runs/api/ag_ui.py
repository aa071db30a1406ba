"""`…/agents/{agent}/ag-ui`: an AG-UI request, answered with the events of its run.

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

from agentops.accounts import incarnations
from agentops.accounts.access import Action
from runs.actions import ag_ui_runs
from runs.actions.ag_ui_answers import InterruptAnswer
from runs.actions.ag_ui_runs import AgUiRequest, ClientMessage
from runs.api.agent_views import agent_in
from runs.api.base_views import ApiView
from runs.api.requests.bodies import Choice, Identifier, LongTextParser, OpenSerializer, StringField, document_of
from runs.lifecycle import inbox
from runs.lifecycle.creation import Media
from runs.models import AgentRun
from runs.models.ag_ui_run import MAX_CLIENT_ID
from runs.queries.ag_ui_dialect import ag_ui_texts
from runs.queries.json_columns import to_json
from runs.tools import front_end_tools
from runs.tools.front_end_tools import InvalidFrontEndTool
from timeline.access import Permit
from timeline.dialects.ag_ui_blocks import ends_run
from timeline.live.cursor import StreamCursor, cursor_of
from timeline.live.rendering import Piece, Rendering
from timeline.live.response import log_stream
from timeline.models import Event

#: The media types that models accept, and the first bytes of each.
SIGNATURES: dict[str, tuple[bytes, ...]] = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
    "application/pdf": (b"%PDF-",),
}
MAX_MEDIA = 20


class Content(NamedTuple):
    """The text of a message, and its media after it."""

    text: str
    media: list[Media]


def content_of(value: Any, pointer: str) -> Content:
    """Return the content of a message. Raises `ValidationError` for parts that no model accepts."""
    parts = [{"type": "text", "text": value}] if isinstance(value, str) else value
    if not isinstance(parts, list):
        raise _refusal("the content of a user message must be text, or a list of parts", pointer)
    texts: list[str] = []
    media: list[Media] = []
    for number, part in enumerate(parts):
        read = _part(part, f"{pointer}/{number}")
        (texts if isinstance(read, str) else media).append(read)  # type: ignore[arg-type]
    if len(media) > MAX_MEDIA:
        raise _refusal(f"a message must have at most {MAX_MEDIA} images and documents", pointer)
    return Content("\n".join(texts), media)


def _part(part: Any, pointer: str) -> str | Media:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image" | "document", "source": {"type": "data", "value": str(data), "mimeType": str(kind)}}:
            return _media(data, kind, pointer)
        case {"type": "audio" | "video" as name}:
            raise _refusal(f"{name} is not supported: send text, images or documents", pointer)
        case {"type": "image" | "document"}:
            raise _refusal("media must be in the request, as data with a mimeType: nothing is fetched", pointer)
    raise _refusal("a part of a user message must be text, an image or a document", pointer)


def _media(data: str, kind: str, pointer: str) -> str | Media:
    kind = kind.partition(";")[0].strip().lower()
    try:
        content = b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise _refusal("the data is not base64", pointer) from None
    if kind.startswith("text/"):
        return _text(content, pointer)  # masked like all texts
    if kind not in SIGNATURES:
        supported = ", ".join([*SIGNATURES, "text/*"])
        raise _refusal(f"the type {kind[:64]!r} is not supported; supported are {supported}", pointer)
    if not content.startswith(SIGNATURES[kind]):
        raise _refusal(f"the data is not of the type {kind}", pointer)
    return {"kind": "binary", "data": data, "media_type": kind}


def _text(content: bytes, pointer: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _refusal("the document is not text in UTF-8", pointer) from None


def _refusal(text: str, pointer: str) -> ValidationError:
    error: Mapping[str, Any] = {"": [text]}
    for step in reversed(pointer.split("/")[1:]):
        error = {step: error.get("", error)}
    return ValidationError(error, "unsupported_content")


# --- Requests ---

#: Messages that clients keep in addition to the conversation.
_BESIDE = ("activity", "reasoning")
#: Messages that prove that the client has the conversation of its thread.
_OF_THE_SITE = ("assistant", "tool")


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
        child=AgUiMessage(), help_text="The user messages at the end are new. The ones before are ignored."
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
        has_conversation = any(message["role"] in _OF_THE_SITE for message in sent)
        return {
            **attrs, "messages": messages, "context": context, "tool_results": _tool_results(sent),
            "has_conversation": has_conversation,
        }  # fmt: skip


def request_of(body: Mapping[str, Any]) -> AgUiRequest:
    """Return the request from the validated body."""
    return AgUiRequest(
        thread_id=body["threadId"],
        run_id=body["runId"],
        messages=body["messages"],
        context=body["context"],
        tools=body["tools"],
        tool_results=body["tool_results"],
        answer=_answer(body["resume"][0]) if body["resume"] else None,
    )


def _answer(entry: Mapping[str, Any]) -> InterruptAnswer:
    return InterruptAnswer(entry["interruptId"], entry["status"] == "cancelled", entry.get("payload"))


def _context(entries: list[dict[str, Any]]) -> str:
    lines = [f"- {entry['description']}: {entry['value']}" for entry in entries]
    return "\n".join(["\n\nContext:", *lines]) if lines else ""


def _last_messages(messages: list[dict[str, Any]]) -> list[ClientMessage]:
    """Return the user messages at the end."""
    last: list[ClientMessage] = []
    for index in reversed(range(len(messages))):
        message = messages[index]
        if message["role"] in _BESIDE:
            continue
        if message["role"] != "user":
            break
        content = content_of(message.get("content"), f"/messages/{index}/content")
        last.insert(0, ClientMessage(_message_id(message["id"], index), content.text, content.media))
    return last


def _tool_results(messages: list[dict[str, Any]]) -> dict[str, str]:
    """Return the results of tool calls as texts, by call ID. They include calls that the site ran."""
    results: dict[str, str] = {}
    for message in messages:
        call_id, content = message.get("toolCallId"), message.get("content")
        if message["role"] == "tool" and isinstance(call_id, str):
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            error = message.get("error")
            results[call_id] = f"Error: {error}\n{text}" if isinstance(error, str) and error else text
    return results


def _message_id(client_id: str, index: int) -> str:
    try:
        return str(Identifier(MAX_CLIENT_ID).run_validation(client_id))
    except ValidationError as error:
        raise ValidationError({"messages": {index: {"id": error.detail}}}) from None


# --- The view ---

#: The texts of errors for a stream that cannot continue. AG-UI has no events for streams.
_NOTICES = {
    "stream-reset": "the position in the stream is no longer valid: send the request again",
    "auth-revoked": "access to the run has ended",
}


def _in_ag_ui(log_id: UUID, batch: Sequence[Event], *, has_snapshots: bool = False) -> list[Piece]:
    of_events = ag_ui_texts(log_id, batch, has_snapshots=has_snapshots)
    return [{"message": texts} if texts else {} for texts in of_events]


def _notice(name: str, data: str, cursor: StreamCursor | None) -> bytes:
    """Return a notice as an error of the AG-UI run. The end of a log needs no notice: AG-UI has already reported it."""
    if name not in _NOTICES:
        return b""
    error = {"type": "RUN_ERROR", "message": _NOTICES[name], "code": name.replace("-", "_")}
    return f"data: {to_json(error)}\n\n".encode()


#: AG-UI. A stream has one AG-UI run: clients wait for the end of the stream, and do not reconnect automatically.
AG_UI = Rendering("ag-ui", _in_ag_ui, closes_after=ends_run, notice=_notice, is_reopened=False)
#: For a client that does not have the conversation of its thread.
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
    #: The client's `runId` is the key.
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
        body = self.get_serializer(data=document_of(request))
        body.is_valid(raise_exception=True)
        if body.validated_data["resume"]:
            self.get_project(Action.APPROVE)
        started = ag_ui_runs.start(self.principal, project, agent, request_of(body.validated_data))
        run = AgentRun.objects.select_related("log").get(pk=started.run_id)
        session_key = request.session.session_key if self.principal.user_id is not None else None
        permit = Permit(self.principal, project.pk, session_key)
        after = cursor_of(request)
        if after.seq < started.after_seq:
            after = StreamCursor(started.after_seq, incarnations.current())
        rendering = AG_UI if body.validated_data["has_conversation"] else AG_UI_WITH_SNAPSHOTS
        return log_stream(run.log, after, rendering, permit, ended=run.state.terminal)
