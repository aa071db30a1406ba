"""The body of an AG-UI request, and what of it this site uses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from runs.actions.ag_ui_runs import AgUiRequest, InterruptAnswer
from runs.api.requests.bodies import Choice, Identifier, OpenSerializer, StringField
from runs.lifecycle import inbox
from runs.models.ag_ui_run import MAX_CLIENT_ID

#: Messages that clients keep beside the conversation.
_BESIDE = ("activity", "reasoning")


class AgUiMessage(OpenSerializer):
    id = StringField(help_text="The client's ID of the message.")
    role = StringField()
    content = serializers.JSONField(required=False, help_text="A text, or a list of text parts.")


class AgUiContext(OpenSerializer):
    description = StringField()
    value = StringField()


class AgUiAnswer(OpenSerializer):
    interruptId = StringField(max_length=MAX_CLIENT_ID)
    status = Choice(choices=["resolved", "cancelled"])
    payload = serializers.JSONField(
        required=False, allow_null=True, help_text="The answer, a text. The agent gets other values as JSON."
    )


class RunAgentInput(OpenSerializer):
    """AG-UI's RunAgentInput. Fields that are not listed are ignored, as the protocol wants it."""

    threadId = Identifier(MAX_CLIENT_ID, help_text="A new thread starts a run, a known one is continued.")
    runId = Identifier(MAX_CLIENT_ID, help_text="A repeated `runId` of a thread does nothing twice.")
    messages = serializers.ListField(
        child=AgUiMessage(), help_text="The user messages at the end are new. The ones before are ignored."
    )
    tools = serializers.ListField(
        child=serializers.JSONField(), required=False, help_text="Must be empty: agents have no tools of front ends."
    )
    context = serializers.ListField(
        child=AgUiContext(), required=False, default=list, help_text="Added to the new message."
    )
    resume = serializers.ListField(
        child=AgUiAnswer(), required=False, default=list, max_length=1, help_text="The answer to the open interrupt."
    )
    state = serializers.JSONField(required=False, allow_null=True, help_text="Ignored: runs have a state of their own.")
    forwardedProps = serializers.JSONField(required=False, allow_null=True, help_text="Ignored.")

    def validate_tools(self, tools: list[Any]) -> list[Any]:
        if tools:
            text = "tools of a front end are not supported: give the agent tools of this site"
            raise ValidationError(text, "frontend_tools_unsupported")
        return tools

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        texts = _new_messages(attrs["messages"])
        message = "\n\n".join(text for _, text in texts) if texts else None
        if message is not None and attrs["context"]:
            lines = [f"- {each['description']}: {each['value']}" for each in attrs["context"]]
            message = "\n".join([f"{message}\n\nContext:", *lines])
        if message is not None and len(message) > inbox.MAX_MESSAGE:
            text = f"the new message must have at most {inbox.MAX_MESSAGE} characters"
            raise ValidationError({"messages": text}, "max_length")
        return {**attrs, "message": message, "message_id": texts[-1][0] if texts else ""}


def request_of(body: Mapping[str, Any]) -> AgUiRequest:
    """Return what the validated body asks for."""
    return AgUiRequest(
        thread_id=body["threadId"],
        run_id=body["runId"],
        message=body["message"],
        message_id=body["message_id"],
        answer=_answer(body["resume"][0]) if body["resume"] else None,
    )


def _answer(entry: Mapping[str, Any]) -> InterruptAnswer:
    payload = entry.get("payload")
    text = payload if isinstance(payload, str) or payload is None else json.dumps(payload, ensure_ascii=False)
    return InterruptAnswer(entry["interruptId"], entry["status"] == "cancelled", text)


def _new_messages(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the IDs and the texts of the user messages at the end."""
    new: list[tuple[str, str]] = []
    for index in reversed(range(len(messages))):
        message = messages[index]
        if message["role"] in _BESIDE:
            continue
        if message["role"] != "user":
            break
        new.insert(0, (_message_id(message["id"], index), _text(message.get("content"), index)))
    return new


def _message_id(client_id: str, index: int) -> str:
    try:
        return str(Identifier(MAX_CLIENT_ID).run_validation(client_id))
    except ValidationError as error:
        raise ValidationError({"messages": {index: {"id": error.detail}}}) from None


def _text(content: Any, index: int) -> str:
    """Return the text of a message. Raises `ValidationError` for media, and for what AG-UI does not know."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts = [
        part["text"]
        for part in (parts if isinstance(parts, list) else [None])
        if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    ]
    if not isinstance(parts, list) or len(texts) != len(parts):
        text = "the content of a user message must be text, or a list of text parts"
        raise ValidationError({"messages": {index: {"content": [text]}}}, "unsupported_content")
    return "\n".join(texts)
