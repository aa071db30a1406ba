"""The reading tools: projects, agents, runs, messages, tool calls, errors, events and approvals."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import Field

from agentops.mcp_server import readable
from agentops.mcp_server.api_access import Api, Query, get
from agentops.mcp_server.api_tool import Arguments, Cursor, Filter, Moment, RowId, RunId, api_tool
from agentops.mcp_server.readable import MAX_TEXT

#: Default and maximum number of rows per page.
DEFAULT_ROWS, MAX_ROWS = 20, 100
#: Maximum number of rows with their content per page.
MAX_WHOLE_ROWS = 20
#: Default and maximum number of characters of a text in a list of messages.
DEFAULT_TEXT, LONGEST_TEXT = 1_500, 20_000
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
    max_text: int = Field(default=DEFAULT_TEXT, ge=50, le=LONGEST_TEXT, description="Characters of a text.")


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


@api_tool("List projects")
async def list_projects(api: Api, _: str, args: ListArguments) -> Any:
    """List the projects that you may see."""
    return await _page(api, "projects", args)


@api_tool("List agents")
async def list_agents(api: Api, project: str, args: ListArguments) -> Any:
    """List the agents of a project."""
    return await _page(api, f"{project}/agents", args)


@api_tool("List runs")
async def list_runs(api: Api, project: str, args: ListRuns) -> Any:
    """List runs, newest first, with filters.

    A run has failed if its status is failed, or if its status is paused and its status_reason is error, answer_cut (the
    answer was cut off) or answer_refused.
    """
    filters: Query = {
        "status": ",".join(args.status),
        "q": args.text,
        "agent_id": args.agent_id,
        "label": args.label,
        "created_after": readable.moment(args.created_after),
        "created_before": readable.moment(args.created_before),
    }
    return {"now": readable.now(), **await _page(api, f"{project}/agent-runs", args, filters)}


@api_tool("Search runs")
async def search(api: Api, project: str, args: SearchTexts) -> Any:
    """Search the messages, tool calls and events of all runs."""
    filters: Query = {
        "kind": ",".join(args.kind),
        "only": "errors" if args.only_errors else None,
        "q": args.q,
        "run_id": args.run_id,
        "after": readable.moment(args.after),
        "before": readable.moment(args.before),
    }
    page = await _page(api, f"{project}/search", args, filters)
    # Without `matches`, the positions of the words, which are for highlighting.
    return page | {"results": [{name: row[name] for name in row if name != "matches"} for row in page["results"]]}


@api_tool("List what waits for a person")
async def list_approvals(api: Api, project: str, args: ListApprovals) -> Any:
    """List what waits for a person, newest first: approvals, questions of agents, and tool calls with an unknown
    outcome. Approvals can be listed after they were decided, by `state`.
    """
    filters = {"kind": ",".join(args.kind), "state": ",".join(args.state), "run_id": args.run_id}
    return await _page(api, f"{project}/approvals", args, filters)


@api_tool("Get a run")
async def get_run(api: Api, project: str, args: OneRun) -> Any:
    """Get a run: status, summary, prompt, result, error, usage, its last errors, failed tool calls, tool calls and
    events, and what it waits for.
    """
    return await readable.run_summary(api, project, args.run_id)


@api_tool("Read messages")
async def list_messages(api: Api, project: str, args: ListMessages) -> Any:
    """Read the conversation of a run in order, or its end (from_end)."""
    path = f"{run_path(project, args)}/messages"
    page = await _page(api, path, args)
    whole = [await get(api, f"{path}/{row['id']}") for row in page["results"]]
    return page | {"results": [readable.message(row, args.max_text) for row in whole]}


@api_tool("Get a message")
async def get_message(api: Api, project: str, args: OneMessage) -> Any:
    """Get one message, with longer texts than in list_messages."""
    return await get(api, f"{run_path(project, args)}/messages/{args.message_id}")


@api_tool("List tool calls")
async def list_tool_calls(api: Api, project: str, args: ListCalls) -> Any:
    """List the tool calls of a run in order, or the last ones (from_end)."""
    path = f"{run_path(project, args)}/tool-calls"
    filters = {"status": ",".join(args.status), "tool_name": args.tool_name}
    if not args.with_content:
        return await _page(api, path, args, filters)
    page = await _page(api, path, args.model_copy(update={"limit": min(args.limit, MAX_WHOLE_ROWS)}), filters)
    whole = [await get(api, f"{path}/{row['id']}") for row in page["results"]]
    return page | {"results": [readable.call(row, MAX_TEXT) for row in whole]}


@api_tool("Get a tool call")
async def get_tool_call(api: Api, project: str, args: OneCall) -> Any:
    """Get a tool call with its input and output."""
    return readable.compact(await get(api, f"{run_path(project, args)}/tool-calls/{args.call_id}"))


@api_tool("List errors")
async def list_errors(api: Api, project: str, args: ListOfRun) -> Any:
    """List failed attempts of model calls and tools in a run, with their causes."""
    return await _page(api, f"{run_path(project, args)}/errors", args)


@api_tool("List events")
async def list_events(api: Api, project: str, args: ListEvents) -> Any:
    """List the events of a run in order, or the last ones (from_end)."""
    path, after = f"{run_path(project, args)}/events", args.after_seq
    if args.from_end:
        after = max((await get(api, path, {"limit": 1}))["last_seq"] - args.limit, 0)
    page = await get(api, path, {"afterSeq": after, "limit": args.limit})
    events = page["results"]
    return {
        "results": [readable.event(row) for row in events],
        "last_seq": page["last_seq"],
        "next_after_seq": events[-1]["seq"] if page["next"] is not None else None,
    }


def run_path(project: str, args: OneRun | ListOfRun) -> str:
    return f"{project}/agent-runs/{args.run_id}"


async def _page(api: Api, path: str, args: ListArguments, filters: Query | None = None) -> dict[str, Any]:
    """Return a page of a list, with cursors in place of links."""
    is_last = isinstance(args, ListOfRun) and args.from_end
    query = {**(filters or {}), "limit": args.limit, "cursor": args.cursor, "at": "end" if is_last else None}
    page: dict[str, Any] = await get(api, path, query)
    rows = [readable.compact(row) for row in page["results"]]
    next_cursor, previous_cursor = _cursor(page.pop("next")), _cursor(page.pop("previous", None))
    back = {"previous_cursor": previous_cursor} if is_last else {}
    return page | {"results": rows, "next_cursor": next_cursor, **back}


def _cursor(link: str | None) -> str | None:
    return parse_qs(urlsplit(link).query)["cursor"][0] if link else None


READING_TOOLS = (
    *(list_projects, list_agents, list_runs, search, get_run, list_messages, get_message),
    *(list_tool_calls, get_tool_call, list_errors, list_events, list_approvals),
)
