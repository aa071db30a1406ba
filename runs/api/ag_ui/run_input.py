"""The body of an AG-UI request, and what of it this site uses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from runs.actions.ag_ui_answers import InterruptAnswer
from runs.actions.ag_ui_runs import AgUiRequest, ClientMessage
from runs.api.ag_ui.message_parts import content_of
from runs.api.requests.bodies import Choice, Identifier, OpenSerializer, StringField
from runs.lifecycle import inbox
from runs.models.ag_ui_run import MAX_CLIENT_ID
from runs.tools import front_end_tools
from runs.tools.front_end_tools import InvalidFrontEndTool

#: Messages that clients keep beside the conversation.
_BESIDE = ("activity", "reasoning")
#: Messages that a client has only if it has the conversation of its thread.
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
    """AG-UI's RunAgentInput. Fields that are not listed are ignored, as the protocol wants it."""

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
    """Return what the validated body asks for."""
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
    """Return the results of tool calls as texts, by the ID of the call: those of the site are among them."""
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
