"""`get_run`: the most important facts about a run in one response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentops.mcp_server import readable
from agentops.mcp_server.api_access import Api, Query, ask

#: Number of errors and calls in a summary, and of events.
IN_SUMMARY, EVENTS = 3, 8
#: Characters of a text in a summary.
MAX_TEXT = 1_000
#: Fields that describe how a run was executed, not what happened.
_LEFT_OUT = frozenset({"agent_config", "run_kind", "starts_fresh", "step_base", "requeued_at", "waited", "last_seq"})
#: Status reason → the corresponding list of `list_approvals`.
_LISTED = {"approval": "approvals", "input": "questions", "unknown_tool": "unknown_outcomes"}


async def get_run(api: Api, project: str, args: Any) -> Any:
    """Return a run, the end of its lists, and the decision it waits for."""
    path = f"{project}/agent-runs/{args.run_id}"
    run = await ask(api, path)
    log = await ask(api, f"{path}/events", {"afterSeq": max(run["last_seq"] - EVENTS, 0), "limit": EVENTS})
    usage = await ask(api, f"{path}/usage", {"limit": 1})
    failed = await _calls(api, path, {"status": "error,denied,unknown"})
    return readable.compact(
        {
            "run": _run(run),
            "waits_for": await _waits_for(api, project, run, log["results"]),
            "usage": {name: value for name, value in usage["totals"].items() if value},
            "last_errors": readable.rows((await _last(api, f"{path}/errors"))["results"]),
            "last_failed_tool_calls": failed,
            "last_tool_calls": await _calls(api, path, {}),
            "last_events": [readable.line(event) for event in log["results"]],
            "last_seq": log["last_seq"],
        }
    )


def _run(run: Mapping[str, Any]) -> dict[str, Any]:
    config = run["agent_config"] or {}
    agent = readable.compact({name: config.get(name) for name in ("provider", "model", "version", "tools")})
    fields = {name: value for name, value in run.items() if name not in _LEFT_OUT}
    return readable.compact({**fields, "agent": agent})


async def _last(api: Api, path: str, filters: Query | None = None) -> Any:
    return await ask(api, path, {**(filters or {}), "limit": IN_SUMMARY, "at": "end"})


async def _calls(api: Api, path: str, filters: Query) -> list[dict[str, Any]]:
    """Return the last calls with their arguments and outputs."""
    page = await _last(api, f"{path}/tool-calls", filters)
    whole = [await ask(api, f"{path}/tool-calls/{row['id']}") for row in page["results"]]
    return [readable.call(row, MAX_TEXT) for row in whole]


async def _waits_for(api: Api, project: str, run: Mapping[str, Any], log: list[dict[str, Any]]) -> Any:
    """Return the decision that the run waits for, from the approvals or the event; None if it does not wait."""
    if run["status"] != "waiting":
        return None
    if run["status_reason"] in _LISTED:
        page = await ask(api, f"{project}/approvals", {"run_id": run["id"], "state": "pending"})
        if page["results"]:
            return {_LISTED[run["status_reason"]]: readable.rows(page["results"])}
    waits = [event for event in log if event["type"] == "run.waiting"]
    return readable.compact({**waits[-1]["payload"], "seq": waits[-1]["seq"]}) if waits else None
