"""The tools by which an agent ends its run (`done`) and asks a person a question (`ask_user`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field

from runs.tools.base import Arguments, BadArguments, Effect, Tool, ToolContext
from runs.tools.functions import tool

MAX_QUESTION = 20_000
MAX_CHOICES, MAX_CHOICE = 20, 500

QuestionText = Annotated[str, Field(pattern=r"\S", max_length=MAX_QUESTION)]
ChoiceText = Annotated[str, Field(pattern=r"\S", max_length=MAX_CHOICE)]


@tool(effect=Effect.READ, inline=True)
def done(result: str, summary: str | None = None) -> str:
    """Say that the task is done. Call it once, when everything is finished: the run ends with it.

    Args:
        result: What came of the task: the answer, or a summary of what was done.
        summary: One or two sentences for the list of runs, where the result is long.
    """
    return result


@dataclass(frozen=True)
class Question:
    """A question to a person, with optional answers to choose from."""

    question: str
    choices: list[str] = field(default_factory=list)
    #: A program answers it, so rules for questions to people do not apply.
    is_for_program: bool = False


@tool(effect=Effect.READ, inline=True)
def ask_user(
    question: QuestionText, choices: Annotated[list[ChoiceText], Field(max_length=MAX_CHOICES)] | None = None
) -> Question:
    """Ask the person who watches this run, and wait for the answer. Only for what you cannot find out yourself.

    Args:
        question: What you need to know, with all that is needed to answer it.
        choices: Answers to choose from, if there are few; the person may also give another answer.
    """
    return Question(question, choices or [])


DONE = replace(done, ends=True)
ASK_USER = replace(ask_user, asks=True)
CONVERSATION_TOOLS = (DONE, ASK_USER)


def question_of(tool: Tool, ctx: ToolContext, arguments: Arguments) -> Question | None:
    """Return the question of a call of `ask_user`. Return None for other tools and for invalid arguments."""
    if not tool.asks:
        return None
    try:
        value = tool.execute(ctx, arguments)
    except BadArguments:
        return None
    return value if isinstance(value, Question) else None
