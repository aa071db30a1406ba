"""`POST /api/internal/agent-hooks/claude-code`: the input of the hooks of an agent program."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from runs.api.ingest.ingest_view import IngestView
from runs.api.requests.bodies import LongTextParser, document_of
from runs.external import agent_hooks
from runs.external.ingest import Sender

_HOOK = {
    "application/json": {
        "type": "object",
        "properties": {
            "hook_event_name": {"type": "string"},
            "session_id": {"type": "string"},
            "message": {"type": "string", "description": "Of a notification."},
            "notification_type": {"type": "string"},
            "tool_name": {"type": "string"},
            "tool_input": {"type": "object"},
            "agent_type": {"type": "string", "description": "Of a sub-agent."},
        },
        "additionalProperties": True,
        "description": "The JSON that Claude Code writes to the input of a hook. Other fields are dropped.",
    }
}
_ANSWER = {
    "type": "object",
    "properties": {
        "stored": {"type": "boolean", "description": "Whether the session is known, and this was news."},
    },
    "required": ["stored"],
}


class ClaudeCodeHooks(IngestView):
    """Record a hook of Claude Code: the session works, waits, or starts a sub-agent.

    Unknown hooks, and hooks that do not change the status, are accepted and dropped, because a hook cannot handle
    errors.
    """

    parser_classes = [LongTextParser]

    @extend_schema(request=_HOOK, responses={200: OpenApiResponse(_ANSWER, "The hook was received.")})
    def post(self, request: Request, **_: Any) -> Response:
        sender = Sender(self.get_ingest_project(), self.principal.actor)
        return Response({"stored": agent_hooks.record_claude_code(sender, document_of(request))})
