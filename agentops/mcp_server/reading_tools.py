"""The tools that read: projects, agents, runs, messages, tool calls, errors and events."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import Field

from agentops.mcp_server.api_access import Api, Query, ask
from agentops.mcp_server.tool import Arguments, Cursor, Filter, Moment, RowId, RunId, Tool

#: Rows of a page. Messages come with their content, so there are fewer of them.
DEFAULT_ROWS, MAX_ROWS = 20, 100
MAX_MESSAGES = 20
#: Errors and calls that a run's summary lists.
IN_SUMMARY = 5
Limit = Annotated[int, Field(ge=1, le=MAX_ROWS)]
Status = Literal["queued", "running", "waiting", "paused", "resumed", "completed", "failed", "stopped"]
CallStatus = Literal["planned", "running", "completed", "error", "denied", "unknown"]


class Page(Arguments):
    limit: Limit = DEFAULT_ROWS
    cursor: Cursor = None


class RunsPage(Page):
    status: list[Status] = Field(default=[], max_length=8)
    agent_id: Filter = Field(default=None, description="Name of the agent.")
    text: Filter = Field(default=None, description="A text in the title or the messages.")
    label: Filter = None
    created_after: Moment = None
    created_before: Moment = None


class SearchPage(Page):
    q: str = Field(max_length=500, description="Words; all of them are in a result.")
    run_id: RunId | None = None
    kind: list[Literal["message", "tool_call", "event"]] = Field(default=[], max_length=3)
    only_errors: bool = Field(default=False, description="Failed calls, and events that report a failure.")
    after: Moment = None
    before: Moment = None


class OneRun(Arguments):
    run_id: RunId


class RunPage(Page):
    run_id: RunId


class MessagesPage(RunPage):
    limit: Annotated[int, Field(ge=1, le=MAX_MESSAGES)] = 10


class CallsPage(RunPage):
    status: list[CallStatus] = Field(default=[], max_length=6)
    tool_name: Filter = None


class OneCall(OneRun):
    call_id: RowId = Field(description="The `id` of the call in `list_tool_calls`.")


class OneMessage(OneRun):
    message_id: RowId


class EventsPage(OneRun):
    after_seq: int = Field(default=0, ge=0, le=2**53, description="Start after this sequence number.")
    limit: Limit = DEFAULT_ROWS


async def list_projects(api: Api, _: str, args: Page) -> Any:
    return await _page(api, "projects", args)


async def list_agents(api: Api, project: str, args: Page) -> Any:
    return await _page(api, f"{project}/agents", args)


async def list_runs(api: Api, project: str, args: RunsPage) -> Any:
    filters = {"status": ",".join(args.status), "q": args.text}
    names = ("agent_id", "label", "created_after", "created_before")
    return await _page(api, f"{project}/agent-runs", args, filters | {name: getattr(args, name) for name in names})


async def search(api: Api, project: str, args: SearchPage) -> Any:
    filters = {"kind": ",".join(args.kind), "only": "errors" if args.only_errors else None}
    names = ("q", "run_id", "after", "before")
    return await _page(api, f"{project}/search", args, filters | {name: getattr(args, name) for name in names})


async def get_run(api: Api, project: str, args: OneRun) -> Any:
    path = _run(project, args)
    return {
        "run": await ask(api, path),
        "usage": (await ask(api, f"{path}/usage", {"limit": 1}))["totals"],
        "first_errors": (await ask(api, f"{path}/errors", {"limit": IN_SUMMARY}))["results"],
        "failed_tool_calls": (
            await ask(api, f"{path}/tool-calls", {"limit": IN_SUMMARY, "status": "error,denied,unknown"})
        )["results"],
        "last_seq": (await ask(api, f"{path}/events", {"limit": 1}))["last_seq"],
    }


async def list_messages(api: Api, project: str, args: MessagesPage) -> Any:
    path = f"{_run(project, args)}/messages"
    page = await _page(api, path, args)
    return page | {"results": [await ask(api, f"{path}/{row['id']}") for row in page["results"]]}


async def get_message(api: Api, project: str, args: OneMessage) -> Any:
    return await ask(api, f"{_run(project, args)}/messages/{args.message_id}")


async def list_tool_calls(api: Api, project: str, args: CallsPage) -> Any:
    filters = {"status": ",".join(args.status), "tool_name": args.tool_name}
    return await _page(api, f"{_run(project, args)}/tool-calls", args, filters)


async def get_tool_call(api: Api, project: str, args: OneCall) -> Any:
    return await ask(api, f"{_run(project, args)}/tool-calls/{args.call_id}")


async def list_errors(api: Api, project: str, args: RunPage) -> Any:
    return await _page(api, f"{_run(project, args)}/errors", args)


async def list_events(api: Api, project: str, args: EventsPage) -> Any:
    page = await ask(api, f"{_run(project, args)}/events", {"afterSeq": args.after_seq, "limit": args.limit})
    is_more = page.pop("next") is not None
    return page | {"next_after_seq": page["results"][-1]["seq"] if is_more else None}


def _run(project: str, args: OneRun | RunPage) -> str:
    return f"{project}/agent-runs/{args.run_id}"


async def _page(api: Api, path: str, args: Page, filters: Query | None = None) -> dict[str, Any]:
    """Return a page of a list, with the cursor of the next one in place of links."""
    page: dict[str, Any] = await ask(api, path, {**(filters or {}), "limit": args.limit, "cursor": args.cursor})
    following = page.pop("next")
    page.pop("previous", None)
    cursor = parse_qs(urlsplit(following).query)["cursor"][0] if following else None
    return page | {"next_cursor": cursor}


READING_TOOLS = (
    Tool("list_projects", "List projects", "List the projects that you may see.", Page, list_projects),
    Tool("list_agents", "List agents", "List the agents of a project.", Page, list_agents),
    Tool(
        "list_runs", "List runs",
        "List runs, newest first, with filters. Failed ones: status failed, and paused with status_reason error.",
        RunsPage, list_runs,
    ),
    Tool("search", "Search runs", "Search the messages, tool calls and events of all runs.", SearchPage, search),
    Tool(
        "get_run", "Get a run",
        "Get a run: status, summary, prompt, result, error, usage, its first errors and failed tool calls, and the "
        "number of its last event.",
        OneRun, get_run,
    ),
    Tool("list_messages", "Read messages", "Read the conversation of a run in order.", MessagesPage, list_messages),
    Tool("get_message", "Get a message", "Get one message; long texts are cut later.", OneMessage, get_message),
    Tool(
        "list_tool_calls", "List tool calls", "List the tool calls of a run, without inputs and outputs.",
        CallsPage, list_tool_calls,
    ),
    Tool("get_tool_call", "Get a tool call", "Get a tool call with its input and output.", OneCall, get_tool_call),
    Tool("list_errors", "List errors", "List the errors of a run, with their causes.", RunPage, list_errors),
    Tool(
        "list_events", "List events",
        "List the events of a run in order: what happened when. The end: after_seq a little below last_seq.",
        EventsPage, list_events,
    ),
)  # fmt: skip
