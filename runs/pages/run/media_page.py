"""Pictures of a message, which pages show inline."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse

from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from runs.access import run_for
from runs.errors import RunNotFound
from runs.models import AgentRunMessage
from runs.pages.content.images import picture

#: If a browser treated the bytes as a document, this policy would keep it from running or loading anything.
POLICY = "default-src 'none'; sandbox"


@require_safe
def media(request: HttpRequest, run_id: UUID, message_id: UUID, index: int) -> HttpResponse:
    """Return the picture at `index` of a message's media, from 0. Raise RunNotFound if pages cannot show it."""
    run = run_for(principal_of(request), run_id)
    row = AgentRunMessage.objects.filter(run=run, pk=message_id).only("content").first()
    found = picture(row.content, index) if row is not None else None
    if found is None:
        raise RunNotFound("picture not found")
    response = HttpResponse(found.data, content_type=found.media_type)
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    name = f"picture-{index}.{found.media_type.partition('/')[2]}"
    response.headers["Content-Disposition"] = f'inline; filename="{name}"'
    return response
