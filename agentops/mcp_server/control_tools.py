"""The tools that control runs. They are only offered if writing is allowed; the API also checks the key's scopes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from agentops.mcp_server.api_access import Api, act
from agentops.mcp_server.api_tool import ApiTool, RowId
from agentops.mcp_server.reading_tools import OneRun

Message = Annotated[str, Field(min_length=1, max_length=200_000)]


class ResumeArguments(OneRun):
    message: Message | None = Field(default=None, description='Next user message. Default: "continue".')
    max_steps: int | None = Field(default=None, ge=1, description="Step limit. Default: that of the run.")


class AnswerArguments(OneRun):
    answer: Message


class DecisionArguments(OneRun):
    call_id: RowId = Field(description="The `call_id` of the approval.")
    decision: Literal["approve", "deny"]
    arguments: dict[str, Any] | None = Field(
        default=None, description="To approve: replaces all arguments of the call. Default: those that were requested."
    )
    always: bool = Field(default=False, description="To approve: also all later calls of this tool in this run.")
    message: str | None = Field(default=None, max_length=10_000, description="Denials: the result for the model.")


class OutcomeArguments(OneRun):
    call_id: RowId = Field(description="The `id` of the call, whose status is unknown.")
    choice: Literal["done", "failed", "retry"]
    text: Message | None = Field(default=None, description="Its output if it is done, or its error.")


async def resume_run(api: Api, project: str, args: ResumeArguments) -> Any:
    return await act(api, f"{_run(project, args)}/resume", {"message": args.message, "max_steps": args.max_steps})


async def pause_run(api: Api, project: str, args: OneRun) -> Any:
    return await act(api, f"{_run(project, args)}/pause", {})


async def stop_run(api: Api, project: str, args: OneRun) -> Any:
    return await act(api, f"{_run(project, args)}/stop", {})


async def answer_question(api: Api, project: str, args: AnswerArguments) -> Any:
    return await act(api, f"{_run(project, args)}/commands", {"type": "reply", "message": args.answer})


async def decide_approval(api: Api, project: str, args: DecisionArguments) -> Any:
    body = {
        "decision": args.decision, "arguments": args.arguments, "always": args.always or None, "message": args.message,
    }  # fmt: skip
    return await act(api, f"{_run(project, args)}/approvals/{args.call_id}", body)


async def resolve_tool_call(api: Api, project: str, args: OutcomeArguments) -> Any:
    name = "message" if args.choice == "failed" else "output"
    path = f"{_run(project, args)}/tool-calls/{args.call_id}/resolve"
    return await act(api, path, {"choice": args.choice, name: args.text})


def _run(project: str, args: OneRun) -> str:
    return f"{project}/agent-runs/{args.run_id}"


CONTROL_TOOLS = (
    ApiTool(
        "resume_run", "Resume a run",
        "Continue a paused run as a new one. If it was resumed before, returns the run that continues it.",
        ResumeArguments, resume_run, is_write=True,
    ),
    ApiTool(
        "pause_run", "Pause a run", "Pause a run after its current step, and its child runs that have not ended.",
        OneRun, pause_run, is_write=True,
    ),
    ApiTool(
        "stop_run", "Stop a run",
        "Stop a run and its child runs that have not ended, for good: they cannot be resumed. Of a run that another "
        "program executes, only the recording is stopped.",
        OneRun, stop_run, is_write=True, is_destructive=True,
    ),
    ApiTool(
        "answer_question", "Answer a question",
        "Answer the question that a run waits for: its status is waiting, its status_reason input.",
        AnswerArguments, answer_question, is_write=True, is_idempotent=False,
    ),
    ApiTool(
        "decide_approval", "Approve or deny a tool call",
        "Approve or deny a tool call that waits for approval; an approved call runs. Only if your user has decided so.",
        DecisionArguments, decide_approval, is_write=True, is_destructive=True,
    ),
    ApiTool(
        "resolve_tool_call", "Resolve an unknown outcome",
        "Say what happened to a tool call whose outcome is unknown; retry runs it again. Only if your user knows it.",
        OutcomeArguments, resolve_tool_call, is_write=True, is_destructive=True,
    ),
)  # fmt: skip
