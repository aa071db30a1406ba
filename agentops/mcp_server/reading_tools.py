"""The reading tools: projects, agents, runs, messages, tool calls, errors, events and approvals."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import Field

from agentops.mcp_server import readable
from agentops.mcp_server.api_access import Api, Query, ask
from agentops.mcp_server.api_tool import ApiTool, Arguments, Cursor, Filter, Moment, RowId, RunId
from agentops.mcp_server.run_summary import MAX_TEXT, get_run

#: Rows per page. Pages of rows with content have fewer.
DEFAULT_ROWS, MAX_ROWS = 20, 100
MAX_WHOLE_ROWS = 20
#: Characters of a text in a list.
SHORT, LONGEST = 1_500, 20_000
Limit = Annotated[int, Field(ge=1, le=MAX_ROWS)]
WholeLimit = Annotated[int, Field(ge=1, le=MAX_WHOLE_ROWS)]
Status = Literal["queued", "running", "waiting", "paused", "resumed", "completed", "failed", "stopped"]
CallStatus = Literal["planned", "running", "completed", "error", "denied", "unknown"]
Kind = Literal["approval", "question", "unknown_outcome"]
State = Literal["pending", "approved", "denied", "expired", "cancelled"]


class ListArguments(Arguments):
    limit: Limit = DEFAULT_ROWS
    cursor: Cursor = None


class ListRuns(ListArguments):
    status: list[Status] = Field(default=[], max_length=8)
    agent_id: Filter = Field(default=None, description="Name of the agent.")
    text: Filter = Field(default=None, description="A text in the title or the messages.")
    label: Filter = None
    created_after: Moment = None
    created_before: Moment = None


class SearchTexts(ListArguments):
    q: str = Field(max_length=500, description="Words; all of them are in a result.")
    run_id: RunId | None = None
    kind: list[Literal["message", "tool_call", "event"]] = Field(default=[], max_length=3)
    only_errors: bool = Field(default=False, description="Failed calls, and events that report a failure.")
    after: Moment = None
    before: Moment = None


class ListApprovals(ListArguments):
    kind: list[Kind] = Field(default=[], max_length=3, description="Default: all.")
    state: list[State] = Field(default=["pending"], max_length=5)
    run_id: RunId | None = None


class OneRun(Arguments):
    run_id: RunId


class ListOfRun(ListArguments):
    run_id: RunId
    from_end: bool = Field(default=False, description="Begin with the last page; `previous_cursor` leads back.")


class ListMessages(ListOfRun):
    limit: WholeLimit = 10
    max_text: int = Field(default=SHORT, ge=50, le=LONGEST, description="Characters of a text.")


class ListCalls(ListOfRun):
    status: list[CallStatus] = Field(default=[], max_length=6)
    tool_name: Filter = None
    with_content: bool = Field(
        default=False,
        description=f"Also inputs and outputs, cut to {MAX_TEXT} characters; at most {MAX_WHOLE_ROWS} rows.",
    )


class OneCall(OneRun):
    call_id: RowId = Field(description="The `id` of the call in `list_tool_calls`.")


class OneMessage(OneRun):
    message_id: RowId


class ListEvents(OneRun):
    after_seq: int = Field(default=0, ge=0, le=2**53, description="Start after this sequence number.")
    from_end: bool = Field(default=False, description="The last events, in place of `after_seq`.")
    limit: Limit = DEFAULT_ROWS


async def list_projects(api: Api, _: str, args: ListArguments) -> Any:
    return await _page(api, "projects", args)


async def list_agents(api: Api, project: str, args: ListArguments) -> Any:
    return await _page(api, f"{project}/agents", args)


async def list_runs(api: Api, project: str, args: ListRuns) -> Any:
    filters: Query = {
        "status": ",".join(args.status),
        "q": args.text,
        "agent_id": args.agent_id,
        "label": args.label,
        "created_after": readable.moment(args.created_after),
        "created_before": readable.moment(args.created_before),
    }
    return {"now": readable.now(), **await _page(api, f"{project}/agent-runs", args, filters)}


async def search(api: Api, project: str, args: SearchTexts) -> Any:
    filters: Query = {
        "kind": ",".join(args.kind),
        "only": "errors" if args.only_errors else None,
        "q": args.q,
        "run_id": args.run_id,
        "after": readable.moment(args.after),
        "before": readable.moment(args.before),
    }
    page = await _page(api, f"{project}/search", args, filters)
    # The positions of the words in a text are only for pages that highlight them.
    return page | {"results": [{name: row[name] for name in row if name != "matches"} for row in page["results"]]}


async def list_approvals(api: Api, project: str, args: ListApprovals) -> Any:
    filters = {"kind": ",".join(args.kind), "state": ",".join(args.state), "run_id": args.run_id}
    return await _page(api, f"{project}/approvals", args, filters)


async def list_messages(api: Api, project: str, args: ListMessages) -> Any:
    path = f"{_run(project, args)}/messages"
    page = await _page(api, path, args)
    whole = [await ask(api, f"{path}/{row['id']}") for row in page["results"]]
    return page | {"results": [readable.message(row, args.max_text) for row in whole]}


async def get_message(api: Api, project: str, args: OneMessage) -> Any:
    return await ask(api, f"{_run(project, args)}/messages/{args.message_id}")


async def list_tool_calls(api: Api, project: str, args: ListCalls) -> Any:
    path, filters = f"{_run(project, args)}/tool-calls", {"status": ",".join(args.status), "tool_name": args.tool_name}
    if not args.with_content:
        return await _page(api, path, args, filters)
    page = await _page(api, path, args.model_copy(update={"limit": min(args.limit, MAX_WHOLE_ROWS)}), filters)
    whole = [await ask(api, f"{path}/{row['id']}") for row in page["results"]]
    return page | {"results": [readable.call(row, MAX_TEXT) for row in whole]}


async def get_tool_call(api: Api, project: str, args: OneCall) -> Any:
    return readable.compact(await ask(api, f"{_run(project, args)}/tool-calls/{args.call_id}"))


async def list_errors(api: Api, project: str, args: ListOfRun) -> Any:
    return await _page(api, f"{_run(project, args)}/errors", args)


async def list_events(api: Api, project: str, args: ListEvents) -> Any:
    path, after = f"{_run(project, args)}/events", args.after_seq
    if args.from_end:
        after = max((await ask(api, path, {"limit": 1}))["last_seq"] - args.limit, 0)
    page = await ask(api, path, {"afterSeq": after, "limit": args.limit})
    events = page["results"]
    following = events[-1]["seq"] if page["next"] is not None else None
    return {
        "results": [readable.event(row) for row in events],
        "last_seq": page["last_seq"],
        "next_after_seq": following,
    }


def _run(project: str, args: OneRun | ListOfRun) -> str:
    return f"{project}/agent-runs/{args.run_id}"


async def _page(api: Api, path: str, args: ListArguments, filters: Query | None = None) -> dict[str, Any]:
    """Return a page of a list, with cursors in place of links."""
    is_last = isinstance(args, ListOfRun) and args.from_end
    query = {**(filters or {}), "limit": args.limit, "cursor": args.cursor, "at": "end" if is_last else None}
    page: dict[str, Any] = await ask(api, path, query)
    following, before = _cursor(page.pop("next")), _cursor(page.pop("previous", None))
    back = {"previous_cursor": before} if is_last else {}
    return page | {"results": readable.rows(page["results"]), "next_cursor": following, **back}


def _cursor(link: str | None) -> str | None:
    return parse_qs(urlsplit(link).query)["cursor"][0] if link else None


READING_TOOLS = (
    ApiTool("list_projects", "List projects", "List the projects that you may see.", ListArguments, list_projects),
    ApiTool("list_agents", "List agents", "List the agents of a project.", ListArguments, list_agents),
    ApiTool(
        "list_runs", "List runs",
        "List runs, newest first, with filters. Failed ones: status failed, and paused with status_reason error.",
        ListRuns, list_runs,
    ),
    ApiTool("search", "Search runs", "Search the messages, tool calls and events of all runs.", SearchTexts, search),
    ApiTool(
        "get_run", "Get a run",
        "Get a run: status, summary, prompt, result, error, usage, its last errors, failed tool calls, tool calls and "
        "events, and what it waits for.",
        OneRun, get_run,
    ),
    ApiTool(
        "list_messages", "Read messages", "Read the conversation of a run in order, or its end (from_end).",
        ListMessages, list_messages,
    ),
    ApiTool("get_message", "Get a message", "Get one message; long texts are cut later.", OneMessage, get_message),
    ApiTool(
        "list_tool_calls", "List tool calls", "List the tool calls of a run in order, or the last ones (from_end).",
        ListCalls, list_tool_calls,
    ),
    ApiTool("get_tool_call", "Get a tool call", "Get a tool call with its input and output.", OneCall, get_tool_call),
    ApiTool(
        "list_errors", "List errors", "List failed attempts of model calls and tools in a run, with their causes.",
        ListOfRun, list_errors,
    ),
    ApiTool(
        "list_events", "List events", "List the events of a run in order, or the last ones (from_end).",
        ListEvents, list_events,
    ),
    ApiTool(
        "list_approvals", "List what waits for a person",
        "List what waits for a person, newest first: approvals, questions of agents, and tool calls with an unknown "
        "outcome. Approvals can be listed after they were decided, by `state`.",
        ListApprovals, list_approvals,
    ),
)  # fmt: skip
