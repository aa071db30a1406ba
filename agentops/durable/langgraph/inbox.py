"""What people send to a run while its graph is executed, as users' turns of the requests to models."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import BaseMessage, HumanMessage

from agentops.durable.run import DurableRun

#: The prefix of the keys of steps that receive messages, before the ID of the message that they follow.
MESSAGES = "messages:"


class RunInbox:
    """What people have sent to a run while its graph was executed.

    The next request to a model gets it as a user's turn after its last message, and so do all later requests that have
    this message. It is not part of the graph's state.
    """

    def __init__(self, run: DurableRun) -> None:
        self._run = run
        #: By the key of the step that has received them.
        self._texts: dict[str, list[str]] = {}
        #: Keys in the journal whose texts were not read yet.
        self._stored = set(run._steps.journal.keys(MESSAGES))

    async def added_to(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the messages of a request with what people have sent."""
        last = messages[-1].id if messages else None
        if last and (self._run.may_have_messages or MESSAGES + last in self._stored):
            await self._receive(MESSAGES + last)
        changed: list[BaseMessage] = []
        for message in messages:
            changed.append(message)
            for text in await self._after(message.id):
                changed.append(HumanMessage(text))
        return changed

    async def _after(self, message_id: str | None) -> list[str]:
        key = f"{MESSAGES}{message_id}"
        if key in self._stored:
            await self._receive(key)
        return self._texts.get(key, [])

    async def _receive(self, key: str) -> None:
        if key not in self._texts:
            self._stored.discard(key)
            self._texts[key] = await self._run.at(key).messages()

    async def at_end(self, key: str) -> list[str]:
        """Return what people have sent until the graph has ended. `key`: identifies the end."""
        if not self._run.may_have_messages and not self._run.has_outcome(key):
            return []
        return await self._run.at(key).messages()
