"""Whole payloads: a message, a tool call, an event. As a page, as the part of one that htmx asks for, or as a file.

Everything is cleaned where it is shown; the page of a message or a call shows its secrets too, to who may see them
and asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django_htmx.middleware import HtmxDetails

from agentops.http.methods import require_safe
from agentops.projects.access import Action, Principal, may, projects_for
from agentops.projects.requests import principal_of
from runs.access import run_for
from runs.actions.reveal import PARAMETER, SHOW, reveal
from runs.errors import RunNotFound
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, RunError
from runs.pages.timeline.card_contents import declared
from runs.pages.timeline.event_texts import HIDDEN_THINKING, media_name
from timeline import log
from timeline.shown import Clip, clean, clip, pretty, took

#: Of one text on a page; who wants more gets a file.
WHOLE_BYTES = 256 * 1024
MAX_CHOICES = 200
TITLES = {
    "system-prompt": "System",
    "user-prompt": "User",
    "tool-return": "Result",
    "text": "Text",
    "thinking": "Thinking",
}


@dataclass(frozen=True)
class PayloadText:
    """A text of a payload: its name in a download's address, its heading, and whether it is folded away at first."""

    name: str
    title: str
    text: str
    folded: bool = False
    #: Whether it is shown with the secrets in it.
    secrets: bool = False

    @property
    def clip(self) -> Clip:
        return clip(self.text, WHOLE_BYTES, secrets=self.secrets)


@dataclass(frozen=True)
class PayloadPage:
    """What a page shows of one: pairs of facts, texts, and the runs and rows that it leads to."""

    title: str
    parts: list[PayloadText]
    facts: list[tuple[str, Any]]
    links: list[tuple[str, str]]
    status: str = ""
    #: Its parts with the secrets in them, where it may have some: made only for who may see them.
    whole: Callable[[], list[PayloadText]] | None = None
    row: Model | None = None


@require_safe
def message(request: HttpRequest, run_id: UUID, message_id: UUID) -> HttpResponse:
    principal = principal_of(request)
    run = run_for(principal, run_id)
    row = AgentRunMessage.objects.filter(run=run, pk=message_id).first()
    if row is None:
        raise RunNotFound("no such message")
    facts = [("Role", row.get_role_display()), ("Position", row.position), ("Step", row.step_number)]
    facts += [("Model", clean(row.model)), ("Rolled back", row.rolled_back_at), ("Written", row.created_at)]
    facts += [(name.replace("_", " "), count) for name, count in sorted(row.usage.items()) if isinstance(count, int)]
    links = [
        (clean(name), reverse("runs:call", args=[run.pk, call]))
        for call, name in row.tool_calls.order_by("pk").values_list("pk", "tool_name")
    ]

    def parts(*, secrets: bool = False) -> list[PayloadText]:
        whole = PayloadText("json", "As JSON", pretty(row.content, secrets=secrets), folded=True, secrets=secrets)
        return [*_message_parts(row, secrets=secrets), whole]

    payload = PayloadPage(f"Message {row.position}", parts(), facts, links)
    return _answer(request, principal, run, replace(payload, row=row, whole=partial(parts, secrets=True)))


@require_safe
def call(request: HttpRequest, run_id: UUID, call_id: UUID) -> HttpResponse:
    principal = principal_of(request)
    run = run_for(principal, run_id)
    row = AgentRunToolCall.objects.select_related("result_message").filter(run=run, pk=call_id).first()
    if row is None:
        raise RunNotFound("no such call")
    facts = [("Call id", clean(row.call_id)), ("Effect", row.effect.replace("_", " ")), ("Step", row.step_number)]
    facts += [("Outcome", declared(row.status, row.resolved_by or "")), ("Reported", row.resolved_at)]
    facts += [("Starts", row.starts), ("Attempts", row.attempts)]
    facts += [("Duration", took(row.duration_ms) if row.duration_ms is not None else None)]
    facts += [("Planned", row.created_at), ("Started", row.started_at), ("Finished", row.finished_at)]
    links = [("The answer that asked for it", reverse("runs:message", args=[run.pk, row.message_id]))]
    if row.child_run_id:
        links.append(("Its child run", reverse("runs:detail", args=[row.child_run_id])))
    payload = PayloadPage(clean(row.tool_name), _call_parts(row), facts, links, row.status, row=row)
    return _answer(request, principal, run, replace(payload, whole=partial(_call_parts, row, secrets=True)))


@require_safe
def event(request: HttpRequest, run_id: UUID, seq: int) -> HttpResponse:
    principal = principal_of(request)
    run = run_for(principal, run_id, among=AgentRun.objects.select_related("project", "log"))
    # Beyond the log's last event there is none, and a number may be too large for any database.
    row = log.events_of(run.pk).filter(seq=seq).first() if seq <= run.log.last_seq else None
    if row is None:
        raise RunNotFound("no such event")
    facts: list[tuple[str, Any]] = [("Type", clean(row.type)), ("Step", row.step), ("Source", row.source)]
    facts += [("Stored", row.created_at), ("Epoch", row.epoch), ("Cleaned of", row.sanitized)]
    page = reverse("runs:detail", args=[run.pk])
    links = [("In the timeline", f"{page}?event={seq}#target")]
    return _answer(
        request,
        principal,
        run,
        PayloadPage(f"Event {seq}", [PayloadText("json", "As JSON", pretty(log.wire(row)))], facts, links),
    )


def _answer(request: HttpRequest, principal: Principal, run: AgentRun, payload: PayloadPage) -> HttpResponse:
    if "download" in request.GET:
        return _file(payload, request.GET["download"])
    context: dict[str, Any] = {"payload": payload, "address": request.path}
    shown = request.GET.get(PARAMETER) == SHOW and payload.row is not None and payload.whole is not None
    if shown:
        payload = _revealed(principal, run, payload)
        context["payload"] = payload
    context["payload_facts"] = [(name, value) for name, value in payload.facts if value not in (None, "", 0)]
    if HtmxDetails(request) and not shown:
        return render(request, "runs/_payload.html", context)
    context |= {
        "run": run,
        "run_title": clean(run.title) or "(without a title)",
        "project": run.project,
        "projects": projects_for(principal).order_by("name", "pk")[:MAX_CHOICES],
        "secrets_shown": shown,
        "secrets_offered": not shown and _offers_secrets(principal, run, payload),
    }
    response = render(request, "runs/payload.html", context)
    if shown:
        response.headers["Cache-Control"] = "no-store"
    return response


def _offers_secrets(principal: Principal, run: AgentRun, payload: PayloadPage) -> bool:
    """Whether the page would show more to them if they asked for it."""
    if payload.whole is None or not may(principal, Action.REVEAL, run.project_id):
        return False
    return [part.clip for part in payload.parts] != [part.clip for part in payload.whole()]


def _revealed(principal: Principal, run: AgentRun, payload: PayloadPage) -> PayloadPage:
    """The payload with its secrets. Raises Forbidden."""
    if payload.row is None or payload.whole is None:
        return payload
    reveal(principal, run.project_id, payload.row)
    return replace(payload, parts=payload.whole())


def _file(payload: PayloadPage, name: str) -> HttpResponse:
    """A part whole, as text: cleaned, as everything that leaves here."""
    part = next((part for part in payload.parts if part.name == name), None)
    if part is None:
        raise RunNotFound("no such part")
    response = HttpResponse(clean(part.text), content_type="text/plain; charset=utf-8")
    response.headers["Content-Disposition"] = f'attachment; filename="{part.name}.txt"'
    return response


def _call_parts(row: AgentRunToolCall, *, secrets: bool = False) -> list[PayloadText]:
    parts = [PayloadText("arguments", "Arguments", pretty(row.input, secrets=secrets))]
    if row.output is not None:
        parts.append(PayloadText("output", "Output", _text_of(row.output, secrets=secrets)))
    seen = row.result_message.content["parts"][0]["content"] if row.result_message is not None else row.output
    if seen != row.output:
        parts.append(
            PayloadText("seen", "What the model was shown of it", _text_of(seen, secrets=secrets), folded=True)
        )
    return [replace(part, secrets=secrets) for part in (*parts, *_failures(row))]


def _message_parts(row: AgentRunMessage, *, secrets: bool) -> Iterator[PayloadText]:
    for number, part in enumerate(row.content.get("parts", ())):
        kind, content = part.get("part_kind"), part.get("content")
        name = f"part-{number}"
        if kind == "tool-call":
            arguments = pretty(part.get("args") or {}, secrets=secrets)
            yield PayloadText(name, f"Tool call: {clean(str(part.get('tool_name')))}", arguments, secrets=secrets)
        elif kind == "thinking":
            yield PayloadText(name, "Thinking", content or HIDDEN_THINKING, secrets=secrets)
        else:
            text = _text_of(content if content is not None else part, secrets=secrets)
            yield PayloadText(name, TITLES.get(str(kind), clean(str(kind))), text, secrets=secrets)


def _text_of(content: Any, *, secrets: bool) -> str:
    """A text as it is, or the texts of a list with its media named."""
    if isinstance(content, str):
        return content
    items = content if isinstance(content, list) else [content]
    return "\n".join(item if isinstance(item, str) else _other(item, secrets=secrets) for item in items)


def _other(item: Any, *, secrets: bool) -> str:
    media = isinstance(item, dict) and (item.keys() & {"media_type", "kind"})
    return f"[{media_name(item)}]" if media else pretty(item, secrets=secrets)


def _failures(call: AgentRunToolCall) -> Iterator[PayloadText]:
    """The attempts of it that failed."""
    errors = RunError.objects.filter(run=call.run_id, step_number=call.step_number)
    mine = errors.filter(context=f"tool:{call.call_id}"[:300]).order_by("attempt", "pk")
    for error in mine:
        title = f"Attempt {error.attempt + 1} failed: {clean(error.error_type)}"
        yield PayloadText(f"error-{error.pk}", title, error.message)
