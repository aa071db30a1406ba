"""The messages between a run and the program of its session.

- Questions that the program asks with its built-in tool. People answer them like the questions of any other run.
- Messages of the conversation that the program has not received.
- The earlier session that a new one continues: the newest whose transcript ends with the run's conversation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, Field, ValidationError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
)

from runs.conversation import ancestry
from runs.conversation.ancestry import Segment
from runs.lifecycle.approval_rows import REQUEST_AGAIN
from runs.models import AgentRun, AgentRunMessage, CliSession
from runs.providers.claude_cli import blocks
from runs.statuses import LIVE
from runs.tools.agent_tools import MAX_CHOICE, MAX_CHOICES, MAX_QUESTION, Question
from runs.tools.base import Arguments, BadArguments, Effect, Tool, ToolContext

#: The name of the program's tool that asks the user.
ASK = "AskUserQuestion"


class _Option(BaseModel):
    label: Annotated[str, Field(pattern=r"\S")]
    description: str = ""


class _Question(BaseModel):
    question: Annotated[str, Field(pattern=r"\S")]
    options: list[_Option] = []
    several: bool = Field(default=False, alias="multiSelect")

    def text(self, *, has_choices: bool) -> str:
        """Return the question and its options. Choices are only included if they have a description."""
        options = [option for option in self.options if option.description or not has_choices]
        lines = [f"- {option.label}{f': {option.description}' if option.description else ''}" for option in options]
        return "\n".join([self.question, *lines])


class _Questions(BaseModel):
    questions: Annotated[list[_Question], Field(min_length=1)]


def _ask(ctx: ToolContext, arguments: Arguments) -> Question:
    """Return the questions of a call as one question. Raises `BadArguments`.

    The options of a single question with a single answer become its choices.
    """
    try:
        questions = _Questions.model_validate(arguments if isinstance(arguments, Mapping) else {}).questions
    except ValidationError as error:
        raise BadArguments(str(error)) from None
    labels = [option.label[:MAX_CHOICE] for option in questions[0].options]
    choices = labels if len(questions) == 1 and not questions[0].several and len(labels) <= MAX_CHOICES else []
    texts = [question.text(has_choices=bool(choices)) for question in questions]
    return Question("\n\n".join(texts)[:MAX_QUESTION], choices)


ASK_TOOL = Tool(
    name=ASK, description="", parameters_schema={}, execute=_ask, effect=Effect.READ, inline=True, asks=True
)


#: Separates messages that are sent as one.
BETWEEN = "\n\n"


def instructions(history: list[ModelMessage]) -> str:
    """Return the system messages at the start of the conversation."""
    parts = [part for message in history[:1] for part in message.parts if isinstance(part, SystemPromptPart)]
    return "\n\n".join(part.content for part in parts)


def user_parts(history: list[ModelMessage]) -> list[UserPromptPart]:
    """Return all user messages, and the system messages of hooks, which a program also gets as user messages."""
    return [
        part if isinstance(part, UserPromptPart) else UserPromptPart(part.content)
        for number, message in enumerate(history)
        for part in message.parts
        if isinstance(part, UserPromptPart) or (number and isinstance(part, SystemPromptPart))
    ]


def after_last_answer(history: list[ModelMessage]) -> list[UserPromptPart]:
    """Return the user messages after the last answer."""
    last = max((index for index, message in enumerate(history) if isinstance(message, ModelResponse)), default=-1)
    return user_parts(history[last:] if last >= 0 else history)


def last_results(history: list[ModelMessage]) -> list[ToolReturnPart]:
    """Return the tool results at the end of the conversation."""
    last = history[-1] if history else None
    parts = last.parts if isinstance(last, ModelRequest) else ()
    return [part for part in parts if isinstance(part, ToolReturnPart)]


def text_of(part: ToolReturnPart) -> str:
    return part.content if isinstance(part.content, str) else part.model_response_str()


def missed_decisions(history: list[ModelMessage]) -> list[UserPromptPart]:
    """Return, as messages, the decisions and answers of people about the last calls.

    The program has not received them: it was ended while a person decided.
    """
    texts = [(part, text_of(part)) for part in last_results(history)]
    return [
        UserPromptPart(f"{part.tool_name}: {text}")
        for part, text in texts
        if part.outcome == "denied" or text.startswith(REQUEST_AGAIN) or part.tool_name == ASK
    ]


def not_in_transcript(parts: list[UserPromptPart], path: Path | None) -> list[UserPromptPart]:
    """Return the messages that the program has not received: its transcript lacks them after the last answer.

    Without a transcript (`path` is None), these are all messages. One text of the transcript may contain several
    messages, because `as_one_message` joins messages.
    """
    texts = blocks.unanswered_pieces(path) if path is not None else []
    return [part for part in parts if not _remove(texts, blocks.pieces(blocks.content_of(part.content)))]


def _remove(texts: list[str], pieces: list[str]) -> bool:
    """Remove the pieces of a message from `texts`. Returns False, and changes nothing, unless all are found."""
    rest = list(texts)
    for piece in pieces:
        wanted = f"{BETWEEN}{piece}{BETWEEN}"
        enclosed_texts = ((index, f"{BETWEEN}{text}{BETWEEN}") for index, text in enumerate(rest))
        match = next(((index, text) for index, text in enclosed_texts if wanted in text), None)
        if match is None:
            return False
        index, text = match
        before, _, after = text.partition(wanted)
        rest[index] = BETWEEN.join(filter(None, [before.removeprefix(BETWEEN), after.removesuffix(BETWEEN)]))
    texts[:] = rest
    return bool(pieces)


def as_one_message(parts: list[UserPromptPart]) -> str | list[dict[str, Any]]:
    """Return several messages as the content of one, because the program starts a turn for each message."""
    if all(isinstance(part.content, str) for part in parts):
        return BETWEEN.join(str(part.content) for part in parts)
    contents = [blocks.content_of(part.content) for part in parts]
    return [
        block
        for content in contents
        for block in ([{"type": "text", "text": content}] if isinstance(content, str) else content)
    ]


@dataclass(frozen=True)
class EarlierSession:
    """The session to continue, if there is one."""

    session_id: UUID | None = None
    #: Whether the run is a fork, and the transcript of its origin continues after the fork.
    is_cut: bool = False


def find_earlier(run: AgentRun, config: Path, *, missing: Collection[UUID]) -> EarlierSession:
    """Return the session that the run's next session continues. `missing`: IDs of sessions unknown to the program.

    Each session is continued as a fork with a new ID, so that the transcript of a run ends with the run.
    """
    run_ids, is_cut = _runs_of(run)
    sessions = CliSession.objects.filter(run__in=run_ids).exclude(pk__in=missing).order_by("-created_at", "-id")
    ids = sessions.values_list("id", flat=True)
    return EarlierSession(next((pk for pk in ids if blocks.transcript_path(config, pk)), None), is_cut)


def _runs_of(run: AgentRun) -> tuple[list[UUID], bool]:
    """Return the runs of the conversation, newest first, whose sessions can be continued.

    They end at a fork whose original run continues after it; then the second value is True.
    """
    run_ids: list[UUID] = []
    for segment in reversed(ancestry.segments_of(run)):
        if segment.upto is not None and _continues_after(segment):
            return run_ids, True
        run_ids.append(segment.run_id)
    return run_ids, False


def _continues_after(segment: Segment) -> bool:
    """Whether the forked run has messages after the fork, or may still add some."""
    is_live = AgentRun.objects.filter(pk=segment.run_id, status__in=LIVE)
    later = AgentRunMessage.objects.filter(run=segment.run_id, position__gt=segment.upto)
    return is_live.exists() or later.exists()
