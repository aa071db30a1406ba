"""Tools of LangChain in the nodes of a served graph: each call is a step of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp
from pydantic import ValidationError

from agentops.durable.answers import Call
from agentops.durable.errors import Denied, StepFailed
from agentops.durable.langgraph.encoding import FORMS, StateEncoding
from agentops.durable.langgraph.failures import original_of
from agentops.durable.langgraph.served import ServedRun, current_task, key_of_call
from agentops.durable.langgraph.tool_rules import ToolRule
from agentops.durable.run import DurableRun

#: Executes a tool with its input. An asynchronous one returns a coroutine.
Execute = Callable[[Any], Any]


class ToolCallStep:
    """One call of a tool in a node: the step of the run that it is."""

    def __init__(
        self, served: ServedRun, encoding: StateEncoding, tool: BaseTool, tool_input: Any, call_id: str | None
    ) -> None:
        self.rule = ToolRule.of(tool)
        self._served = served
        self._encoding = encoding
        self._tool = tool
        self._input = tool_input
        self._call_id = call_id

    @property
    def key(self) -> str:
        """The key of the step of a call that a model has requested."""
        return key_of_call(current_task()[0], str(self._call_id))

    @property
    def is_stored(self) -> bool:
        """Whether the journal has the outcome of the call."""
        return self._served.run.has_outcome(self.key)

    def check_input(self) -> None:
        """Raise the `ValidationError` of arguments that the tool refuses, which `ToolNode` answers.

        This happens before the step, because the journal could not give this exception back.
        """
        if self._tool.handle_validation_error:
            return
        # LangChain adds the ID of the call to the input.
        given = dict(self._input) if isinstance(self._input, dict) else self._input
        try:
            self._tool._parse_input(given, self._call_id)
        except ValidationError as error:
            if self._call_id is not None:
                call = Call(id=self._call_id, name=self._tool.name)
                self._served.node_run.at(self.key).reject(call, str(error))
            raise
        except Exception:
            return  # the tool raises it again in its step

    async def arun(self, execute: Execute) -> Any:
        """Execute the tool as a step, and return its result as stored."""

        async def function(**changed: Any) -> dict[str, Any]:
            try:
                return self._encoding.as_json(await execute(self._with(changed)))
            except GraphBubbleUp as error:
                raise self._unsuitable(error) from error

        async def plain(arguments: dict[str, Any]) -> dict[str, Any]:
            return await function(**arguments)

        try:
            return self._result(await self._begin(self._step_run(), function, plain))
        except StepFailed as error:
            return self._failed(error)

    def run(self, execute: Execute) -> Any:
        """Execute the tool as a step, and return its result as stored. For functions in threads."""

        def function(**changed: Any) -> dict[str, Any]:
            try:
                return self._encoding.as_json(execute(self._with(changed)))
            except GraphBubbleUp as error:
                raise self._unsuitable(error) from error

        try:
            run = self._served.in_thread(self._step_run())
            return self._result(self._begin(run, function, lambda arguments: function(**arguments)))
        except StepFailed as error:
            return self._failed(error)

    def _step_run(self) -> DurableRun:
        """Return the run for the step of this call, or if the call has failed before, for another one."""
        if self._call_id is None:
            return self._served.next_run()
        failures = self._served.failed_calls[self._call_id]
        return self._served.node_run.at(f"{self.key}:{failures + 1}" if failures else self.key)

    def _begin(self, run: Any, function: Any, plain: Any) -> Any:
        """Start the step: of the call of a model, or without one, or when the call has failed before, another one."""
        if self._call_id is None or self._served.failed_calls[self._call_id]:
            return run.step(self._tool.name, plain, self._arguments, effect=self.rule.effect)
        call = Call(
            id=self._call_id,
            name=self._tool.name,
            arguments=self._arguments,
            effect=self.rule.effect if self.rule.step else "idempotent",
            needs_approval=self.rule.approval,
        )
        # LangGraph may execute the node again, and with it the call, whose step then has its outcome.
        self._served.run._executed.pop(call.id, None)
        return run.tool(call, function, shown=self._shown)

    async def arecord(self, result: Any) -> Any:
        """Store the result of a tool whose parts were steps. Returns it as stored."""
        return await self.arun(lambda _: _returned(result))

    def record(self, result: Any) -> Any:
        """Store the result of a tool whose parts were steps. For functions in threads."""
        return self.run(lambda _: result)

    @property
    def _arguments(self) -> dict[str, Any]:
        """The arguments that the model has chosen, without the additions of LangGraph."""
        if not isinstance(self._input, dict):
            return {"input": self._input}
        chosen = self._tool.args
        return {name: value for name, value in self._input.items() if name in chosen}

    def _with(self, changed: dict[str, Any]) -> Any:
        """Return the input of the tool with the arguments that people or hooks have decided."""
        if not isinstance(self._input, dict):
            return changed["input"]
        kept = {name: value for name, value in self._input.items() if name not in self._arguments}
        return {**kept, **changed}

    def _result(self, stored: Any) -> Any:
        """Return the result of the tool. A person who has resolved an unknown outcome has given a text."""
        if isinstance(stored, dict) and stored.keys() & FORMS:
            return self._encoding.from_json(stored)
        if self._call_id is None:
            return stored
        return ToolMessage(str(stored), name=self._tool.name, tool_call_id=self._call_id)

    def _shown(self, document: dict[str, Any]) -> str:
        result = self._encoding.from_json(document)
        return str(result.text) if isinstance(result, BaseMessage) else str(result)

    def _failed(self, error: StepFailed) -> Any:
        """Return the text for the model instead of the result of a denied call. Raises the exception of the tool."""
        if self._call_id is not None:
            if isinstance(error, Denied):
                return ToolMessage(error.message, name=self._tool.name, tool_call_id=self._call_id, status="error")
            self._served.failed_calls[self._call_id] += 1
        raised = original_of(error)
        raise raised from raised.__cause__

    def _unsuitable(self, error: GraphBubbleUp) -> RuntimeError:
        name = self._tool.name
        return RuntimeError(
            f"tool {name!r} ends with {type(error).__name__}, so it cannot be a step. "
            f'Give it metadata={{"agentops": {{"step": False}}}}: then what it does is executed again after the answer'
        )


async def _returned(value: Any) -> Any:
    return value
