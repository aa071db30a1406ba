"""Sessions of the SDK in durable runs: their methods are steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents import Session, SessionABC
from pydantic_core import to_jsonable_python

from agentops.durable.openai_agents.execution import Execution, active
from agentops.durable.openai_agents.site_sessions import AgentopsSession


def durable_session(session: Session | None, execution: Execution) -> Session | None:
    """Return a session whose methods are steps. An `AgentopsSession` stores nothing that the journal does not have."""
    if session is None or isinstance(session, (AgentopsSession, DurableSession)):
        return session
    return DurableSession(session)


class DurableSession(SessionABC):
    """Any session of the SDK: each of its methods is a step."""

    def __init__(self, inner: Session) -> None:
        self.inner = inner
        self.session_id = inner.session_id
        self.session_settings = getattr(inner, "session_settings", None)

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the items of the session."""
        items: list[Any] = await self._step("get_items", "read", lambda: self.inner.get_items(limit))
        return items

    async def add_items(self, items: list[Any]) -> None:
        """Add items to the session. About an interrupted step a person decides, because items could appear twice."""
        await self._step("add_items", "once", lambda: self.inner.add_items(items))

    async def pop_item(self) -> Any:
        """Remove and return the last item of the session."""
        return await self._step("pop_item", "once", self.inner.pop_item)

    async def clear_session(self) -> None:
        """Remove all items."""
        await self._step("clear_session", "idempotent", self.inner.clear_session)

    async def _step(self, name: str, effect: Any, call: Callable[[], Any]) -> Any:
        async def method() -> Any:
            return to_jsonable_python(await call())

        if (execution := active()) is None:
            return await call()
        name = f"session.{name}"
        return await execution.run.at(execution.key(name)).step(name, method, effect=effect)
