"""The tools that control runs. They are offered only if writing is allowed; the API checks the key's scopes, too."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from agentops.mcp_server.api_access import Api, act
from agentops.mcp_server.api_tool import ApiTool
from agentops.mcp_server.reading_tools import OneRun

Message = Annotated[str, Field(min_length=1, max_length=200_000)]


class ResumeArguments(OneRun):
    message: Message | None = Field(default=None, description='Next user message. Default: "continue".')
    max_steps: int | None = Field(default=None, ge=1, description="Step limit. Default: that of the run.")


class AnswerArguments(OneRun):
    answer: Message


async def resume_run(api: Api, project: str, args: ResumeArguments) -> Any:
    return await act(api, f"{_run(project, args)}/resume", {"message": args.message, "max_steps": args.max_steps})


async def pause_run(api: Api, project: str, args: OneRun) -> Any:
    return await act(api, f"{_run(project, args)}/pause", {})


async def stop_run(api: Api, project: str, args: OneRun) -> Any:
    return await act(api, f"{_run(project, args)}/stop", {})


async def answer_question(api: Api, project: str, args: AnswerArguments) -> Any:
    return await act(api, f"{_run(project, args)}/commands", {"type": "reply", "message": args.answer})


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
        "Stop a run and its child runs that have not ended, for good: they cannot be resumed.",
        OneRun, stop_run, is_write=True, is_destructive=True,
    ),
    ApiTool(
        "answer_question", "Answer a question",
        "Answer the question that a run waits for: its status is waiting, its status_reason input.",
        AnswerArguments, answer_question, is_write=True, is_idempotent=False,
    ),
)  # fmt: skip
