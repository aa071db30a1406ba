"""One execution of a run: answers, calls, questions and messages, each a step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from typing import Any

from agentops.durable.answers import Answer, Call, shortened_id
from agentops.durable.claude.errors import ClaudeFailed, OutcomeLost
from agentops.durable.claude.messages import questions_of
from agentops.durable.claude.outcomes import ToolOutcome
from agentops.durable.claude.session import ClaudeSession
from agentops.durable.claude.spending import usage_from
from agentops.durable.errors import Denied, StepFailed
from agentops.durable.positions import CALL_KEY
from agentops.durable.run import DurableRun

#: The name of the steps that call the model. The model itself is in the answer, so that options may change it.
MODEL_STEP = "claude"


class ClaudeConversation:
    """The conversation of a run with the model."""

    def __init__(self, run: DurableRun, session: ClaudeSession) -> None:
        self._run = run
        self._session = session
        #: Without a program that has reached a call, calls are executed one after the other.
        self._one_by_one = asyncio.Lock()

    async def execute(self) -> Any:
        """Execute the run, and return its result: the structured output, or the text of the last turn."""
        self._session.say(content_of(self._run.prompt))
        for number in count(1):
            answer = await self._run.at(_answer_key(number)).model(MODEL_STEP, self._next_answer)
            self._session.take(answer)
            await self._use(answer)
            texts = await self._run.at(f"messages:{number}").messages()
            for text in texts:
                self._session.say(text)
            ended = answer.raw["ended"]
            if ended is not None:
                await self._count(number, ended["usage"])
                if not texts:
                    return _result_of(ended)
        raise AssertionError("unreachable")

    async def _next_answer(self) -> Answer:
        return await self._session.next_answer(self._run.stream)

    async def _count(self, number: int, usage: Mapping[str, Mapping[str, int]]) -> None:
        """Count tokens that no answer has reported."""
        for model, tokens in usage.items():
            spent = Answer(text=_OTHER_USAGE, model=model, provider="anthropic", usage=usage_from(tokens))

            async def report(spent: Answer = spent) -> Answer:
                return spent

            await self._run.at(f"usage:{number}:{model}"[:200]).model(MODEL_STEP, report)

    # --- Calls ---

    async def _use(self, answer: Answer) -> None:
        """Ask the questions of an answer, and execute its calls."""
        for asked in answer.raw["asks"]:
            await self._ask(str(asked["id"]), asked["input"])
        if answer.calls:
            # A program that is started for one of its tools calls the model afterwards, so those come last.
            ordered = sorted(answer.calls, key=lambda call: call.name not in self._session.tools)
            await asyncio.gather(*(self._call(call) for call in ordered))

    async def _ask(self, call_id: str, asked: Mapping[str, Any]) -> None:
        answers = {
            text: await self._run.at(f"ask:{call_id}:{number}").ask(text, choices)
            for number, (text, choices) in enumerate(questions_of(asked), start=1)
        }
        text = "\n".join(f"{question}\n{answer}" for question, answer in answers.items())
        self._session.note_outcome(call_id, ToolOutcome(f"The answers of the user:\n{text}"))

    async def _call(self, call: Call) -> None:
        """Execute a call in its step, and note the outcome. A denied or failed call is an outcome, too."""
        async with nullcontext() if self._session.is_at(call.id) else self._one_by_one:
            if self._run.has_outcome(f"{CALL_KEY}{shortened_id(call.id)}"):
                outcome = await self._outcome(call, call.arguments, None)
            else:
                permission = await self._session.permission(call)
                arguments = dict(permission.arguments)
                stepped = replace(call, arguments=arguments, needs_approval=permission.needs_approval)
                outcome = await self._outcome(stepped, arguments, permission)
            self._session.note_outcome(call.id, outcome)

    async def _outcome(self, call: Call, arguments: Mapping[str, Any], permission: Any) -> ToolOutcome:
        async def execute(**arguments: Any) -> Any:
            if permission.denied:
                self._session.refuse(call.id, permission.denied)
                return ToolOutcome(permission.denied, is_error=True).value
            return (await self._session.execute(call, arguments, permission)).value

        try:
            return ToolOutcome.of(await self._run.tool(call, execute))
        except OutcomeLost as lost:
            # The function of the run fails, so that the run pauses with the reason.
            raise lost.reason from None
        except Denied as denied:
            reason = denied.message or "The call was denied."
        except StepFailed as failed:
            if failed.type == ClaudeFailed.__name__:
                raise
            reason = f"{failed.type}: {failed.message}"
        self._session.refuse(call.id, reason)
        return ToolOutcome(reason, is_error=True)


_OTHER_USAGE = "Tokens of sub-agents, and of internal model calls of Claude Code."


def _answer_key(number: int) -> str:
    return f"answer:{number}"


def _result_of(ended: Mapping[str, Any]) -> Any:
    """Return the result of a run whose last turn has ended. Raises `ClaudeFailed`."""
    if (error := ended["error"]) is not None:
        raise ClaudeFailed(error["kind"], error["message"])
    return ended["structured"] if ended["structured"] is not None else ended["result"]


def content_of(prompt: Any) -> Any:
    """Return a prompt as the content of a message: a text, or blocks."""
    if not isinstance(prompt, list):
        return str(prompt)
    return [_block(item) for item in prompt]


def _block(item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    source = {"type": "url", "url": item.get("url")}
    if item.get("kind") == "binary":
        source = {"type": "base64", "media_type": item.get("media_type"), "data": item.get("data")}
    is_document = "document" in str(item.get("kind")) or item.get("media_type") == "application/pdf"
    return {"type": "document" if is_document else "image", "source": source}
