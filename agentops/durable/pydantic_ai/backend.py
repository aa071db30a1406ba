"""The library's durable operations as steps of the run: model requests, tool calls, and all others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Generic, Literal, TypeVar, cast

from pydantic_ai.durable_exec import (
    BoundDurableOperation,
    DurableOperation,
    DurableOperationBackend,
    DynamicToolsetCallToolParams,
    EventStreamHandlerId,
    EventStreamHandlerParams,
    JournalOperationNamer,
    ModelCompactMessagesId,
    ModelCompactMessagesParams,
    ModelRequestId,
    ModelRequestParams,
    ToolsetCallToolId,
    ToolsetCallToolParams,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
    durable_unit_scope,
    record_durable_unit,
)
from pydantic_ai.exceptions import SkipToolExecution, ToolFailed, UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import RunContext, ToolDenied
from pydantic_ai.toolsets import ToolsetTool

from agentops.durable.answers import Answer, Call, Effect
from agentops.durable.errors import Denied, StepFailed
from agentops.durable.pydantic_ai import tool_values
from agentops.durable.pydantic_ai.executions import AgentExecution, execution_of, running
from agentops.durable.pydantic_ai.failures import original_of
from agentops.durable.pydantic_ai.model_answers import answer_of, function_calls
from agentops.durable.pydantic_ai.tool_options import ToolOptions, options_of

ParamsT = TypeVar("ParamsT")
WireT = TypeVar("WireT")
ResultT = TypeVar("ResultT")

#: Operations that change nothing. All others are repeated with the same key of the step.
_READING = (ToolsetGetToolsId, ToolsetGetInstructionsId, ToolsetValidateToolArgumentsId)
_idempotency_key: ContextVar[str] = ContextVar("agentops_idempotency_key", default="")


def idempotency_key() -> str:
    """Return the idempotency key of the tool call that calls this: the same in each attempt. Empty outside of runs."""
    return _idempotency_key.get()


class StepBackend(DurableOperationBackend[ToolOptions]):
    """Executes the durable operations of an agent as steps of the current durable run."""

    def __init__(self, agent_name: str, *, model_retries: int, handles_events: bool) -> None:
        """Prepare the operations. `handles_events`: whether a handler wants the events of the agent."""
        self._namer = JournalOperationNamer(agent_name)
        self._model_retries = model_retries
        self._handles_events = handles_events

    def bind(
        self, operation: DurableOperation[ParamsT, WireT, ResultT]
    ) -> BoundDurableOperation[ParamsT, WireT, ResultT]:
        """Return the caller of an operation."""
        bound: _Bound[Any, Any, Any]
        match operation.operation_id:
            case ModelRequestId() | ModelCompactMessagesId():
                bound = _BoundModel(operation, self._model_retries)
            case ToolsetCallToolId():
                bound = _BoundTool(operation)
            case EventStreamHandlerId():
                bound = _BoundEvents(operation, self._handles_events)
            case _:
                bound = _BoundStep(operation, self._namer)
        return cast("BoundDurableOperation[ParamsT, WireT, ResultT]", bound)

    def config_for_tool(
        self, operation: DurableOperation[ParamsT, WireT, ResultT], *, tool: object | None, tool_name: str
    ) -> ToolOptions | Literal[False]:
        """Return the options in the metadata of a tool. Raises `UserError` for unknown ones."""
        return options_of(tool.tool_def if isinstance(tool, ToolsetTool) else None)

    def registrations(self) -> Sequence[Callable[..., object]]:
        """Return nothing: a site needs no registration of single operations."""
        return ()


class _Bound(BoundDurableOperation[ParamsT, WireT, ResultT], Generic[ParamsT, WireT, ResultT]):
    """An operation that is executed as a step."""

    def __init__(self, operation: DurableOperation[ParamsT, WireT, ResultT]) -> None:
        self._operation = operation

    @property
    def operation(self) -> DurableOperation[ParamsT, WireT, ResultT]:
        """The operation."""
        return self._operation

    @abstractmethod
    async def __call__(self, params: ParamsT, *, config: object | None = None) -> ResultT:
        """Execute the operation, or read its result from the journal."""

    async def _result(self, params: ParamsT) -> Any:
        """Execute the operation now, and return its result as JSON."""
        with durable_unit_scope():
            return self._operation.result_codec.dump(await self._operation.handler(params))


class _BoundStep(_Bound[Any, Any, Any]):
    """Discovery of tools, validation of arguments, operations of capabilities and workspaces."""

    def __init__(self, operation: DurableOperation[Any, Any, Any], namer: JournalOperationNamer) -> None:
        super().__init__(operation)
        self._name = namer.operation_name(operation.operation_id)
        self._effect: Effect = "read" if isinstance(operation.operation_id, _READING) else "idempotent"

    async def __call__(self, params: Any, *, config: object | None = None) -> Any:
        ctx: RunContext[Any] = getattr(params, "run_context", None) or params.ctx
        execution = execution_of(ctx)
        executed = False

        async def execute() -> Any:
            nonlocal executed
            executed = True
            return await self._result(params)

        step = execution.run.at(execution.step_key(self._name, ctx))
        try:
            payload = await step.step(self._name, execute, effect=self._effect)
        except StepFailed as error:
            raised = original_of(error)
            raise raised from raised.__cause__
        record_durable_unit(executed=executed)
        return self._operation.result_codec.load(payload)


class _BoundEvents(_Bound[EventStreamHandlerParams, Any, Any]):
    """Events of the agent for its handler. They are not steps. Events during a replay were handled before."""

    def __init__(self, operation: DurableOperation[Any, Any, Any], is_wanted: bool) -> None:
        super().__init__(operation)
        self._is_wanted = is_wanted

    async def __call__(self, params: EventStreamHandlerParams, *, config: object | None = None) -> None:
        run = running()
        if self._is_wanted and run is not None and not run.is_replaying:
            await self._operation.handler(params)


class _BoundModel(_Bound[Any, Any, Any]):
    """Requests to models, streamed or not, and requests that compact the history."""

    def __init__(self, operation: DurableOperation[Any, Any, Any], retries: int) -> None:
        super().__init__(operation)
        self._retries = retries
        identity = cast("ModelRequestId | ModelCompactMessagesId", operation.operation_id)
        self._model = identity.model_name or "model"

    async def __call__(
        self, params: ModelRequestParams | ModelCompactMessagesParams, *, config: object | None = None
    ) -> Any:
        execution = execution_of(params.run_context)
        parameters = _parameters_of(params)
        executed = False

        async def request() -> Answer:
            nonlocal executed
            executed = True
            response = await self._operation.handler(params)
            ids = execution.new_ids(function_calls(response, parameters))
            return answer_of(response, self._operation.result_codec.dump(response), parameters, ids)

        # The name in the journal is not the model's: a run continues with another model after a deployment.
        step = execution.run.at(execution.begin_request(), "model request")
        try:
            answer = await step.model(self._model, request, retries=self._retries)
        except StepFailed as error:
            raised = original_of(error, self._model)
            raise raised from raised.__cause__
        record_durable_unit(executed=executed)
        response = self._operation.result_codec.load(answer.raw)
        if isinstance(response, ModelResponse):
            execution.note_calls(function_calls(response, parameters), list(answer.calls))
        return response


def _parameters_of(params: ModelRequestParams | ModelCompactMessagesParams) -> ModelRequestParameters:
    if isinstance(params, ModelRequestParams):
        return params.model_request_parameters
    return params.request_context.model_request_parameters


class _BoundTool(_Bound[Any, Any, Any]):
    """Calls of tools: of functions, MCP servers and dynamic toolsets."""

    async def __call__(
        self, params: ToolsetCallToolParams | DynamicToolsetCallToolParams, *, config: object | None = None
    ) -> Any:
        execution = execution_of(params.ctx)
        options = config if isinstance(config, ToolOptions) else ToolOptions()
        call = execution.call_of(params.ctx, params.name, params.tool_args)
        call = replace(
            call, effect=options.effect, needs_approval=(params.ctx.tool_call_id or "") in execution.reviewed
        )
        try:
            if options.child:
                return await self._delegate(execution, options.child, call, params)
            return self._operation.result_codec.load(await self._execute(execution, call, params, options))
        except Denied as error:
            raise SkipToolExecution(ToolDenied(error.message)) from error
        except StepFailed as error:
            if error.type == "outcome_unknown":
                raise ToolFailed(error.message) from error
            raised = original_of(error)
            raise raised from raised.__cause__

    async def _execute(self, execution: AgentExecution, call: Call, params: Any, options: ToolOptions) -> Any:
        """Execute the tool as a step, and return its result in the library's JSON form."""
        executed = False

        async def execute(idempotency_key: str = "", **arguments: Any) -> Any:
            nonlocal executed
            executed = True
            token = _idempotency_key.set(idempotency_key)
            try:
                if "idempotency_key" in call.arguments:
                    arguments["idempotency_key"] = idempotency_key
                return tool_values.to_stored(await self._result(_with_arguments(params, call, arguments)))
            finally:
                _idempotency_key.reset(token)

        run = execution.run.at(f"call:{call.id}")
        value = await run.tool(call, execute, retries=options.retries, timeout_s=options.timeout_s)
        record_durable_unit(executed=executed)
        return tool_values.from_stored(value)

    async def _delegate(self, execution: AgentExecution, agent: str, call: Call, params: Any) -> Any:
        """Execute the call by a child run of another agent, and return the result of that run."""
        run = execution.run.at(f"call:{call.id}")
        child = await run.child(agent, _prompt_of(params.tool_args, params.name), call=call)
        if child.status != "completed":
            raise ToolFailed(f"The run of the agent {agent!r} has ended as {child.status}: {child.error}")
        payload = tool_values.from_stored(child.result)
        return self._operation.result_codec.load(payload)


def _with_arguments(params: Any, call: Call, arguments: Mapping[str, Any]) -> Any:
    """Return the parameters of a tool call, with the arguments of an approver if they differ from the model's."""
    if arguments == call.arguments:
        return params
    if isinstance(params, DynamicToolsetCallToolParams) or params.tool is None:
        return replace(params, tool_args=dict(arguments))
    validated = params.tool.args_validator.validate_python(dict(arguments), context=params.ctx.validation_context)
    return replace(params, tool_args=validated)


def _prompt_of(arguments: Mapping[str, Any], tool: str) -> str:
    """Return the prompt of a child run: the only argument of the tool, which must be a text."""
    values = list(arguments.values())
    if len(values) != 1 or not isinstance(values[0], str):
        raise UserError(f"the tool {tool!r} is executed by a child run: it must have one argument, a text")
    return values[0]
