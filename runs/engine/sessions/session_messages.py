"""The messages to send to a program when its session begins or continues: the ones it has not received."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
)

from runs.engine.sessions.program_questions import ASK
from runs.lifecycle.approval_rows import REQUEST_AGAIN
from runs.providers.claude_cli import blocks, transcripts

#: Separates messages that are sent as one.
BETWEEN = "\n\n"


def instructions(history: list[ModelMessage]) -> str:
    """Return the system messages at the start of the conversation."""
    parts = [part for message in history[:1] for part in message.parts if isinstance(part, SystemPromptPart)]
    return "\n\n".join(part.content for part in parts)


def user_parts(history: list[ModelMessage]) -> list[UserPromptPart]:
    """Return all user messages, and the system messages of hooks: both reach a program in the same way."""
    return [
        part if isinstance(part, UserPromptPart) else UserPromptPart(part.content)
        for number, message in enumerate(history)
        for part in message.parts
        if isinstance(part, UserPromptPart) or (number and isinstance(part, SystemPromptPart))
    ]


def after_last_answer(history: list[ModelMessage]) -> list[UserPromptPart]:
    """Return the user messages that no answer follows."""
    last = max((index for index, message in enumerate(history) if isinstance(message, ModelResponse)), default=-1)
    return user_parts(history[last:] if last >= 0 else history)


def last_results(history: list[ModelMessage]) -> list[ToolReturnPart]:
    """Return the tool results at the end of the conversation."""
    last = history[-1] if history else None
    parts = last.parts if isinstance(last, ModelRequest) else ()
    return [part for part in parts if isinstance(part, ToolReturnPart)]


def text_of(part: ToolReturnPart) -> str:
    """Return a result as a text."""
    return part.content if isinstance(part.content, str) else part.model_response_str()


def told(history: list[ModelMessage]) -> list[UserPromptPart]:
    """Return the decisions and answers of people on the last calls that the program missed because it did not run."""
    texts = [(part, text_of(part)) for part in last_results(history)]
    return [
        UserPromptPart(f"{part.tool_name}: {text}")
        for part, text in texts
        if part.outcome == "denied" or text.startswith(REQUEST_AGAIN) or part.tool_name == ASK
    ]


def not_written(parts: list[UserPromptPart], path: Path | None) -> list[UserPromptPart]:
    """Return the messages that the transcript does not contain: the program has received the others.

    `joined` may have merged several messages. Each text of the transcript counts for one message.
    """
    heard = transcripts.unanswered(path) if path is not None else []
    return [part for part in parts if not _take(heard, transcripts.pieces(blocks.content_of(part.content)))]


def _take(heard: list[str], pieces: list[str]) -> bool:
    """Remove the pieces of a message from `heard`, if all of them are in it."""
    rest = list(heard)
    for piece in pieces:
        wanted = f"{BETWEEN}{piece}{BETWEEN}"
        places = ((index, f"{BETWEEN}{text}{BETWEEN}") for index, text in enumerate(rest))
        place = next(((index, text) for index, text in places if wanted in text), None)
        if place is None:
            return False
        index, text = place
        before, _, after = text.partition(wanted)
        rest[index] = BETWEEN.join(filter(None, [before.removeprefix(BETWEEN), after.removesuffix(BETWEEN)]))
    heard[:] = rest
    return bool(pieces)


def joined(parts: list[UserPromptPart]) -> str | list[dict[str, Any]]:
    """Return several messages as one, because the program starts a turn for each message."""
    if all(isinstance(part.content, str) for part in parts):
        return BETWEEN.join(str(part.content) for part in parts)
    contents = [blocks.content_of(part.content) for part in parts]
    return [
        block
        for content in contents
        for block in ([{"type": "text", "text": content}] if isinstance(content, str) else content)
    ]
