"""Send traces from third-party exporters and SDKs to a site through ASGI and WSGI; a worker creates the runs."""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentops.accounts.models import Project
from runs.models import AgentRun
from tests.support.factories import with_key
from tests.support.machine import ROOT, free_port, install_node_packages
from tests.support.otlp import JSON, agent, as_json, chat, traces
from tests.support.programs import foreign_clients
from tests.support.programs.foreign_clients import TEXT, TOKENS
from tests.support.recordings import check_run
from tests.support.stage import Stage
from tests.support.suite_fixtures import PYTHON_CLIENTS, MakeWeb
from tests.support.timing import eventually

pytestmark = pytest.mark.slow
JS_AGENT = ROOT / "tests/support/node/js_agent"
#: Libraries that each trace two model calls. Anthropic's library traces its calls too.
ASKED = ("openllmetry", "openinference")
JS_COMPRESSIONS = ("gzip", "none")
JS_TURNS = 7


@contextmanager
def by_wsgi(stage: Stage, log: Path) -> Iterator[str]:
    """Serve the site on a WSGI server and yield its URL."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "granian",
        "--interface",
        "wsgi",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
        "--blocking-threads",
        "4",
        "--no-ws",
        "bench.wsgi_site:application",
    ]
    with log.open("w") as output:
        env = stage.databases.env(stage.name, stage.home)
        server = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output)
        try:
            eventually(lambda: _listens(port), why=f"granian listens: {log.read_text()}")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(20)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def sender(name: str, url: str, key: str, *arguments: str) -> subprocess.Popen[str]:
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HOME": os.environ.get("HOME", "/"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization=Bearer%20{key}",
        "LANGFUSE_BASE_URL": url,
        "LANGFUSE_HOST": url,
        "LANGFUSE_PUBLIC_KEY": "agentops",
        "LANGFUSE_SECRET_KEY": key,
        "OTEL_EXPORTER_OTLP_TIMEOUT": "60",
        "LANGFUSE_TIMEOUT": "60",
    }
    command = [sys.executable, str(PYTHON_CLIENTS), name, *arguments]
    return started(command, env)


def js_sender(url: str, key: str, compression: str) -> subprocess.Popen[str]:
    packages = install_node_packages(JS_AGENT)
    env = {"PATH": os.environ["PATH"], "NODE_PATH": str(packages / "node_modules")}
    return started(["node", str(JS_AGENT / "js_agent.cjs"), url, key, compression], env)


def started(command: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def send_everything(url: str, key: str) -> None:
    """Send JSON, compressed, in chunks; then run all senders in parallel."""
    body = gzip.compress(as_json(traces(agent(1, agent="chunks"), chat(2, 1))))
    headers = {"Authorization": f"Bearer {key}", "Content-Type": JSON, "Content-Encoding": "gzip"}
    answer = httpx.post(f"{url}/v1/traces", headers=headers, content=iter([body[:40], body[40:]]), timeout=60)
    assert (answer.status_code, answer.json()) == (200, {})
    senders = [
        sender("long_agent", url, key),
        sender("langfuse_agent", url, key),
        *(js_sender(url, key, compression) for compression in JS_COMPRESSIONS),
        *(
            sender("instrumented_agent", url, key, library, kind)
            for library, kind in zip(ASKED, ("gzip", "none"), strict=True)
        ),
    ]
    for process in senders:
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
        assert "Failed to export" not in said, said


@pytest.mark.parametrize("interface", ["asgi", "wsgi"])
def test_exporters_and_sdks(interface: str, stage: Stage, web_process: MakeWeb, tmp_path: Path) -> None:
    project = Project.objects.create(slug="traced", name="Traced")
    key = with_key(project, "ingest")["Authorization"].removeprefix("Bearer ")
    stage.worker()
    if interface == "asgi":
        send_everything(web_process().url, key)
    else:
        with by_wsgi(stage, tmp_path / "granian.log") as url:
            send_everything(url, key)
    children = len(range(0, foreign_clients.STEPS, foreign_clients.EVERY_CHILD))
    runs = AgentRun.objects.filter(project=project)
    eventually(
        lambda: runs.filter(status="completed").count() == 7 + len(JS_COMPRESSIONS) + children,
        why="all runs are completed",
    )
    by_agent = {run.agent_config["agent_id"] + "/" + run.session_id: run for run in runs}
    for run in runs:
        check_run(run)
    for check in (check_long_agent, check_instrumented_agents, check_langfuse_agent, check_js_agents, check_chunks):
        check(by_agent)


Runs = dict[str, AgentRun]
Check = Callable[[Runs], None]


def tools_of(run: AgentRun) -> list[Any]:
    return list(run.tool_calls.order_by("step_number", "call_id").values_list("tool_name", "status", "output"))


def check_long_agent(runs: Runs) -> None:
    run = runs["long/conv-ü"]
    steps = range(foreign_clients.STEPS)
    assert (run.input_tokens, run.output_tokens) == (sum(100 + n for n in steps), 7 * len(steps))
    assert run.step_count == len(steps)
    calls = run.tool_calls.order_by("step_number")
    assert [call.call_id for call in calls] == [f"call_{n}" for n in steps]
    assert [call.status == "error" for call in calls] == [n % foreign_clients.EVERY_FAILURE == 0 for n in steps]
    children = run.children.all()
    assert {child.agent_config["agent_id"] for child in children} == {
        f"child-{n}" for n in steps[:: foreign_clients.EVERY_CHILD]
    }
    assert [tools_of(child) for child in children] == [[("read", "completed", "")]] * len(children)


def check_instrumented_agents(runs: Runs) -> None:
    """Check that each call counts once, although Anthropic's library and its instrumentation both trace it."""
    for library in ASKED:
        for name in ("lead", "other"):
            run = runs[f"{name}/{library}"]
            assert (run.input_tokens, run.output_tokens) == tuple(2 * count for count in TOKENS), (library, name)
            assert (run.step_count, run.result or run.summary) == (2, TEXT), (library, name)
            assert tools_of(run) == [("get_weather", "completed", "sunny"), ("get_time", "error", "no clock")]
            assert run.tool_calls.get(tool_name="get_weather").input == {"city": "Zürich"}
            roles = list(run.messages.order_by("position").values_list("role", flat=True))
            assert roles == ["user", "assistant", "tool_result", "tool_result", "assistant"], (library, name)


def check_langfuse_agent(runs: Runs) -> None:
    run = runs["traced/"]
    assert (run.input_tokens, run.output_tokens, run.cache_read_tokens, str(run.cost_usd)) == (
        110,
        3,
        100,
        "0.00100000",
    )
    assert tools_of(run) == [("bash", "error", "no such file")]
    assert (run.prompt, run.result, run.source) == ("List the files", "done", AgentRun.Source.OTLP)


def check_js_agents(runs: Runs) -> None:
    for compression in JS_COMPRESSIONS:
        run = runs[f"js {compression}/"]
        turns = range(JS_TURNS)
        assert (run.input_tokens, run.output_tokens, run.step_count) == (10 * sum(turns), sum(turns), JS_TURNS)
        calls = run.tool_calls.order_by("step_number").values_list("call_id", "status", "input")
        assert list(calls) == [(f"call_{n}", "error" if n == 2 else "completed", {"turn": n}) for n in turns]
        assert run.prompt == "héllo 0 🎉"


def check_chunks(runs: Runs) -> None:
    assert (runs["chunks/"].input_tokens, runs["chunks/"].output_tokens) == (10, 1)
