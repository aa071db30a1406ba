"""Full payloads of a message, a tool call or an event: as a page, as a fragment for htmx, or as a download.

Texts are redacted when they are displayed. The pages of messages and tool calls can show the secrets to users with
permission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, cast
from uuid import UUID

from django.db.models import Case, F, JSONField, Model, When
from django.db.models.functions import Substr
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django_htmx.middleware import HtmxDetails

from agentops.accounts.access import Action, Principal, may
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from runs.access import PARAMETER, SHOW, reveal, run_for
from runs.conversation.long_outputs import text_of
from runs.errors import RunNotFound
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, RunError
from runs.pages.content.call_arguments import language_read, show_arguments
from runs.pages.content.images import content_text, media_of_content
from runs.pages.content.shown_text import ShownText, show_markdown, show_output, show_plain, show_tree
from runs.pages.content.terminal_text import colours_of
from runs.pages.run.any_run import page_context
from runs.pages.run.conversation_page import role_label
from runs.pages.timeline.card_contents import resolution_text
from runs.pages.timeline.cards import PROSE_ROLES
from runs.pages.timeline.event_texts import HIDDEN_THINKING
from runs.queries.long_texts import JsonText, long_output, masked
from timeline import log
from timeline.display import LOOKAHEAD, Clip, clean, clip, format_json, format_ms, make_pieces_legible
from timeline.events import EventType
from timeline.models import Event
from timeline.reasons import finish_text, reason_label
from timeline.shown_events import payload_of

#: Maximum bytes of a text on a page; a download is complete.
WHOLE_BYTES = 256 * 1024
#: Kind of a part of a message → title.
TITLES = {
    "system-prompt": "System message",
    "user-prompt": "User message",
    "tool-return": "Tool result",
    "text": "Text",
    "thinking": "Thinking",
}

#: Fields of an event that may contain its text, in order of preference.
_EVENT_TEXTS = ("content", "text", "output", "error", "thinking", "preview")
#: Events whose text may be a JSON value.
_WITH_JSON_TEXTS = (EventType.MESSAGE_ADDED, EventType.TOOL_END)


class Form(StrEnum):
    """How a text is displayed."""

    PROSE = "prose"
    MARKDOWN = "markdown"
    ARGUMENTS = "arguments"
    OUTPUT = "output"
    JSON = "json"


#: Kind of a part of a message → form of its text; other kinds are output.
_FORMS = {"text": Form.MARKDOWN, "user-prompt": Form.MARKDOWN, "system-prompt": Form.PROSE}
#: The forms of the texts that the download of a message contains.
_DOWNLOADED = (Form.PROSE, Form.MARKDOWN)


@dataclass(frozen=True)
class PayloadText:
    """A text of a payload."""

    #: Identifies the text in the URL of its download.
    name: str
    title: str
    text: str
    form: Form = Form.OUTPUT
    #: Whether the text is collapsed at first.
    folded: bool = False
    #: The arguments of a tool call, needed to display its arguments and its output.
    arguments: Any = None
    #: Whether the text is displayed with its secrets.
    secrets: bool = False
    #: The bytes of the whole text if `text` is truncated.
    size: int = 0

    @property
    def clip(self) -> Clip:
        """Return the text for display, truncated to WHOLE_BYTES."""
        return clip(self.text, WHOLE_BYTES, size=self.size, secrets=self.secrets)

    @property
    def plain(self) -> list[ShownText]:
        """Return the text without formatting; an empty list if it is empty."""
        clipped = self.clip
        return [ShownText(text=clipped.text, whole=clipped.whole)] if clipped else []

    @property
    def shown(self) -> list[ShownText]:
        """Return the formatted text; an empty list if it is empty. The arguments of a call may be several texts."""
        if self.form is Form.ARGUMENTS:
            return show_arguments(self.arguments, WHOLE_BYTES, as_tree=True)
        clipped = self.clip
        if not clipped:
            return []
        if self.form is Form.MARKDOWN:
            return [show_markdown(clipped)]
        if self.form is Form.PROSE:
            return [show_plain(clipped)]
        colours = colours_of(self.text[: len(clipped.text) + LOOKAHEAD], clipped.text)
        return [show_tree(clipped) or show_output(clipped, colours, language_read(self.arguments))]


@dataclass(frozen=True)
class PayloadPage:
    """The content of a payload page."""

    title: str
    parts: list[PayloadText]
    #: Pairs of name and value. Empty values are not displayed.
    facts: list[tuple[str, Any]]
    #: Pairs of label and URL.
    links: list[tuple[str, str]]
    #: The status of a tool call.
    status: str = ""
    #: Returns the parts with their secrets; None if the payload cannot have any. Check the permission before calling.
    with_secrets: Callable[[], list[PayloadText]] | None = None
    #: The message or tool call, for the audit entry when its secrets are displayed; None for an event.
    row: Model | None = None
    #: URLs of the pictures that the page shows.
    pictures: list[str] = field(default_factory=list)


@require_safe
def message(request: HttpRequest, run_id: UUID, message_id: UUID) -> HttpResponseBase:
    """Show a message of a run. Raises RunNotFound."""
    principal = principal_of(request)
    run = run_for(principal, run_id)
    row = AgentRunMessage.objects.filter(run=run, pk=message_id).first()
    if row is None:
        raise RunNotFound("message not found")
    facts = [("Role", role_label(row)), ("Position", row.position), ("Step", row.step_number)]
    facts += [("Model", clean(row.model)), ("Finish reason", finish_text(row.finish_reason))]
    facts += [("Rolled back", row.rolled_back_at), ("Created", row.created_at)]
    facts += [(name.replace("_", " "), count) for name, count in sorted(row.usage.items()) if isinstance(count, int)]
    links = [
        (clean(name), reverse("runs:call", args=[run.pk, call]))
        for call, name in row.tool_calls.order_by("pk").values_list("pk", "tool_name")
    ]

    def parts(*, secrets: bool = False) -> list[PayloadText]:
        text = format_json(row.content, secrets=secrets)
        return [
            *_message_parts(row, secrets=secrets),
            PayloadText("json", "As JSON", text, Form.JSON, folded=True, secrets=secrets),
        ]

    payload = PayloadPage(f"Message {row.position}", parts(), facts, links, pictures=_pictures(run, row))
    return _respond(request, principal, run, replace(payload, row=row, with_secrets=partial(parts, secrets=True)))


@require_safe
def call(request: HttpRequest, run_id: UUID, call_id: UUID) -> HttpResponseBase:
    """Show a tool call of a run. Raises RunNotFound."""
    principal = principal_of(request)
    run = run_for(principal, run_id)
    is_download = request.GET.get("download") == "output"
    if is_download and (pieces := long_output(run.pk, call_id)) is not None:
        # Convert to readable text first: escape sequences inside a secret would hide it.
        return _text_file(StreamingHttpResponse(map(str.encode, masked(make_pieces_legible(pieces)))), "output")
    row = _call_of(run, call_id, cuts_output=not is_download)
    if row is None:
        raise RunNotFound("tool call not found")
    facts = [("Call ID", clean(row.call_id)), ("Effect", row.effect.replace("_", " ")), ("Step", row.step_number)]
    facts += [("Outcome", resolution_text(row.status, row.resolved_by or "")), ("Resolved", row.resolved_at)]
    facts += [("Starts", row.starts), ("Attempts", row.attempts)]
    facts += [("Duration", format_ms(row.duration_ms) if row.duration_ms is not None else None)]
    facts += [("Output SHA-256", row.output_sha256), ("Planned", row.created_at)]
    facts += [("Started", row.started_at), ("Finished", row.finished_at)]
    links = [("Requesting message", reverse("runs:message", args=[run.pk, row.message_id]))]
    if row.child_run_id:
        links.append(("Child run", reverse("runs:detail", args=[row.child_run_id])))
    payload = PayloadPage(clean(row.tool_name), _call_parts(row), facts, links, row.status, row=row)
    if row.result_message is not None:
        payload = replace(payload, pictures=_pictures(run, row.result_message))
    return _respond(request, principal, run, replace(payload, with_secrets=partial(_call_parts, row, secrets=True)))


@require_safe
def event(request: HttpRequest, run_id: UUID, seq: int) -> HttpResponseBase:
    """Show an event of a run. Raises RunNotFound."""
    principal = principal_of(request)
    run = run_for(principal, run_id, among=AgentRun.objects.select_related("project", "log"))
    # Check the range first: the number may be too large for the database.
    row = log.events_of(run.pk).filter(seq=seq).first() if seq <= run.log.last_seq else None
    if row is None:
        raise RunNotFound("event not found")
    facts: list[tuple[str, Any]] = [("Type", clean(row.type)), ("Step", row.step), ("Source", row.source)]
    facts += [("Stored", row.created_at), ("Epoch", row.epoch), ("Redacted", row.sanitized)]
    page = reverse("runs:detail", args=[run.pk])
    links = [("Show in timeline", f"{page}?event={seq}#target")]
    return _respond(request, principal, run, PayloadPage(f"Event {seq}", _event_parts(row), facts, links))


def _event_parts(event: Event) -> list[PayloadText]:
    """Return the event as JSON, after its main text if it has one."""
    payload = payload_of(event)
    types = object if event.type in _WITH_JSON_TEXTS else str
    values = (payload[name] for name in _EVENT_TEXTS if payload.get(name))
    value = next((value for value in values if isinstance(value, types)), "")
    text = value if isinstance(value, str) else format_json(value)
    is_markdown = event.type in (EventType.LLM_TEXT, EventType.LLM_TURN_END) or payload.get("role") in PROSE_ROLES
    form = Form.MARKDOWN if is_markdown else Form.OUTPUT if event.type.startswith("tool.") else Form.PROSE
    whole = PayloadText("json", "As JSON", format_json(log.wire(event)), Form.JSON)
    return [PayloadText("text", "Text", text, form), whole] if text else [whole]


def _pictures(run: AgentRun, row: AgentRunMessage) -> list[str]:
    """Return the URLs of the pictures of a message."""
    return [
        reverse("runs:media", args=[run.pk, row.pk, part.number])
        for part in media_of_content(row.content)
        if part.is_picture
    ]


def _respond(request: HttpRequest, principal: Principal, run: AgentRun, payload: PayloadPage) -> HttpResponseBase:
    """Return the payload as a page; as a fragment for htmx; or with `download`, one of its texts as a file."""
    if "download" in request.GET:
        return _download(payload, request.GET["download"])
    as_text = request.GET.get("as") == "text"
    context: dict[str, Any] = {"payload": payload, "address": request.path, "as_text": as_text}
    shows_secrets = False
    if request.GET.get(PARAMETER) == SHOW and payload.row is not None and payload.with_secrets is not None:
        shows_secrets = True
        # Writes an audit entry. Raises Forbidden without permission.
        reveal(principal, run.project_id, payload.row)
        payload = replace(payload, parts=payload.with_secrets())
        # Without formatting, so that the page shows only the texts themselves with secrets.
        context |= {"payload": payload, "as_text": True}
    context["payload_facts"] = [(name, value) for name, value in payload.facts if value not in (None, "", 0)]
    if HtmxDetails(request) and not shows_secrets:
        return render(request, "runs/run/_payload.html", context)
    context |= {
        "run": run,
        "run_title": clean(run.title) or "(untitled)",
        **page_context(principal, run),
        "shows_secrets": shows_secrets,
        "offers_secrets": not shows_secrets and _has_visible_secrets(principal, run, payload),
    }
    response = render(request, "runs/run/payload.html", context)
    if shows_secrets:
        response.headers["Cache-Control"] = "no-store"
    return response


def _has_visible_secrets(principal: Principal, run: AgentRun, payload: PayloadPage) -> bool:
    """Return whether `principal` may reveal secrets and the displayed texts have any."""
    if payload.with_secrets is None or not may(principal, Action.REVEAL, run.project_id):
        return False
    return [part.clip for part in payload.parts] != [part.clip for part in payload.with_secrets()]


def _download(payload: PayloadPage, name: str) -> HttpResponseBase:
    """Return the part `name` as a text file, redacted; for "text", the texts of a message without its thinking."""
    parts = [part for part in payload.parts if part.name == name]
    if name == "text" and not parts:
        parts = [part for part in payload.parts if part.form in _DOWNLOADED and part.title != TITLES["thinking"]]
    if not parts:
        raise RunNotFound("part of the payload not found")
    text = "\n\n".join(clean(part.text) for part in parts)
    return _text_file(HttpResponse(text), name)


def _text_file(response: HttpResponseBase, name: str) -> HttpResponseBase:
    """Set the headers of a text file. Return `response`."""
    response.headers["Content-Type"] = "text/plain; charset=utf-8"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}.txt"'
    return response


def _call_of(run: AgentRun, call_id: UUID, *, cuts_output: bool) -> AgentRunToolCall | None:
    """Return a call. With `cuts_output`, a long output is truncated to the part that a page shows."""
    rows = AgentRunToolCall.objects.select_related("result_message").filter(run=run, pk=call_id)
    if not cuts_output:
        return rows.first()
    short = Case(When(output_bytes=None, then=F("output")), output_field=JSONField())
    head = Case(When(output_bytes__isnull=False, then=Substr(JsonText("output"), 1, WHOLE_BYTES + LOOKAHEAD)))
    row: Any = rows.defer("output").annotate(short_output=short, output_head=head).first()
    if row is not None:
        row.output = row.short_output if row.output_bytes is None else row.output_head
    return cast("AgentRunToolCall | None", row)


def _call_parts(row: AgentRunToolCall, *, secrets: bool = False) -> list[PayloadText]:
    """Return the arguments and the output of a tool call, and the errors of its attempts."""
    arguments = format_json(row.input, secrets=secrets)
    parts = [PayloadText("arguments", "Arguments", arguments, Form.ARGUMENTS, arguments=row.input)]
    if row.output is not None:
        text = content_text(row.output, secrets=secrets)
        parts.append(PayloadText("output", "Output", text, arguments=row.input, size=row.output_bytes or 0))
    sent_output = row.result_message.content["parts"][0]["content"] if row.result_message is not None else row.output
    if _differs(row, sent_output):
        text = content_text(sent_output, secrets=secrets)
        parts.append(PayloadText("sent", "Output sent to the model", text, folded=True))
    return [replace(part, secrets=secrets) for part in (*parts, *_failures(row))]


def _differs(row: AgentRunToolCall, sent_output: Any) -> bool:
    """Return whether the model got another output than the stored one. `row.output` may be truncated."""
    if row.output_bytes is None:
        return bool(sent_output != row.output)
    return sent_output is not row.output and len(text_of(sent_output).encode(errors="replace")) < row.output_bytes


def _message_parts(row: AgentRunMessage, *, secrets: bool) -> Iterator[PayloadText]:
    """Yield the texts of a message in their order."""
    for number, part in enumerate(row.content.get("parts", ())):
        kind, content = part.get("part_kind"), part.get("content")
        name = f"part-{number}"
        if kind == "tool-call":
            args = part.get("args") or {}
            title, text = f"Tool call: {clean(str(part.get('tool_name')))}", format_json(args, secrets=secrets)
            yield PayloadText(name, title, text, Form.ARGUMENTS, arguments=args, secrets=secrets)
        elif kind == "thinking":
            yield PayloadText(name, TITLES[kind], content or HIDDEN_THINKING, Form.PROSE, secrets=secrets)
        else:
            text = content_text(content if content is not None else part, secrets=secrets)
            form = _FORMS.get(str(kind), Form.OUTPUT)
            yield PayloadText(name, TITLES.get(str(kind), clean(str(kind))), text, form, secrets=secrets)


def _failures(call: AgentRunToolCall) -> Iterator[PayloadText]:
    """Yield the errors of the failed attempts of a tool call."""
    errors = RunError.objects.filter(run=call.run_id, step_number=call.step_number)
    of_call = errors.filter(call_id=call.call_id[:300]).order_by("attempt", "pk")
    for error in of_call:
        title = f"Attempt {error.attempt + 1} failed: {clean(reason_label(error.error_type))}"
        yield PayloadText(f"error-{error.pk}", title, error.message)
