"""Questions that a program asks with its built-in tool. People answer them like the questions of any other run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from runs.tools.base import Arguments, BadArguments, Effect, Tool, ToolContext
from runs.tools.conversation_tools import MAX_CHOICE, MAX_CHOICES, MAX_QUESTION, Question

#: The name of the tool.
ASK = "AskUserQuestion"


class _Option(BaseModel):
    label: Annotated[str, Field(pattern=r"\S")]
    description: str = ""


class _Question(BaseModel):
    question: Annotated[str, Field(pattern=r"\S")]
    options: list[_Option] = []
    several: bool = Field(default=False, alias="multiSelect")

    def text(self, *, has_choices: bool) -> str:
        """Return the question, with the options that have a description or are not offered as choices."""
        options = [option for option in self.options if option.description or not has_choices]
        lines = [f"- {option.label}{f': {option.description}' if option.description else ''}" for option in options]
        return "\n".join([self.question, *lines])


class _Questions(BaseModel):
    questions: Annotated[list[_Question], Field(min_length=1)]


def _ask(ctx: ToolContext, arguments: Arguments) -> Question:
    """Return the questions of a call as one. A single question's options are its choices. Raises `BadArguments`."""
    try:
        asked = _Questions.model_validate(arguments if isinstance(arguments, Mapping) else {}).questions
    except ValidationError as error:
        raise BadArguments(str(error)) from None
    labels = [option.label[:MAX_CHOICE] for option in asked[0].options]
    choices = labels if len(asked) == 1 and not asked[0].several and len(labels) <= MAX_CHOICES else []
    texts = [question.text(has_choices=bool(choices)) for question in asked]
    return Question("\n\n".join(texts)[:MAX_QUESTION], choices)


ASK_TOOL = Tool(
    name=ASK, description="", parameters_schema={}, execute=_ask, effect=Effect.READ, inline=True, asks=True
)
