"""The client programs: how the newest versions are installed, and how each is run."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.machine import ROOT

PROGRAMS = Path(__file__).parent / "programs"
#: A Node.js that is new enough for all packages.
NODE = f"node-linux-{'arm64' if platform.machine() == 'aarch64' else 'x64'}"
#: The packages for programs in JavaScript: in their latest versions, and in the newest compatible versions.
LATEST = (NODE, "ai", "@ai-sdk/anthropic", "@ai-sdk/openai", "@ai-sdk/otel", "@ag-ui/client", "eventsource")
FITTING = ("@opentelemetry/api", "@opentelemetry/sdk-trace-node", "@opentelemetry/exporter-trace-otlp-http", "zod")
_TIMEOUT_S = 300


@dataclass(frozen=True)
class ClientProgram:
    """A program, or a variant of it that another argument chooses."""

    #: Its part of the path of the model server, and its project on the site.
    name: str
    title: str
    #: The file in `PROGRAMS`.
    script: str
    arguments: Sequence[str] = ()
    #: The subjects of tests.newest.comparison that it does not send completely.
    unsent: frozenset[str] = frozenset()
    #: The packages in the column of versions.
    packages: Sequence[str] = ()
    #: Whether it reads a run of the site, instead of sending its own.
    reads: bool = False


class Installation:
    """A directory with the newest packages of the programs: one virtual environment for each file in Python."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        #: Whether this process has installed the packages for programs in JavaScript.
        self._has_node = False

    def install(self, script: str) -> None:
        """Install the packages that a file needs, in the newest versions."""
        if script.endswith(".mjs"):
            self._install_node()
            return
        environment = self._environment(script)
        uv = [str(Path(sys.executable).with_name("uv"))]
        if not (environment / "bin" / "python").exists():
            _run([*uv, "venv", "--quiet", "--python", sys.executable, str(environment)])
        target = ["--python", str(environment / "bin" / "python")]
        _run([*uv, "pip", "install", "--quiet", "--upgrade", *target, "--requirements", str(PROGRAMS / script)])

    def command(self, program: ClientProgram) -> list[str]:
        """Return the command that runs a program."""
        if program.script.endswith(".mjs"):
            # Modules find packages in their own directory.
            shutil.copy(PROGRAMS / program.script, self._node)
            return [str(self._node_program()), str(self._node / program.script), *program.arguments]
        python = self._environment(program.script) / "bin" / "python"
        return [str(python), str(PROGRAMS / program.script), *program.arguments]

    def run(self, program: ClientProgram, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a program with these variables and no others."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return subprocess.run(
            self.command(program),
            env={**kept, "HOME": str(self.directory), **env},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )

    def versions(self, program: ClientProgram) -> str:
        """Return the names and versions of the packages that the table shows."""
        if program.script.endswith(".mjs"):
            found = {name: self._node_version(name) for name in LATEST}
        else:
            python = str(self._environment(program.script) / "bin" / "python")
            uv = str(Path(sys.executable).with_name("uv"))
            listed = json.loads(_run([uv, "pip", "list", "--format", "json", "--python", python]))
            found = {package["name"]: package["version"] for package in listed}
        return ", ".join(f"{name} {found[name]}" for name in program.packages)

    @property
    def _node(self) -> Path:
        return self.directory / "node"

    def _node_program(self) -> Path:
        return self._node / "node_modules" / NODE / "bin" / "node"

    def _node_version(self, package: str) -> str:
        manifest = self._node / "node_modules" / package / "package.json"
        return str(json.loads(manifest.read_text(encoding="utf-8"))["version"])

    def _environment(self, script: str) -> Path:
        return self.directory / script.removesuffix(".py")

    def _install_node(self) -> None:
        if self._has_node:
            return
        # Without the packages of an earlier run: npm would keep them.
        shutil.rmtree(self._node, ignore_errors=True)
        self._node.mkdir(parents=True)
        packages = dict.fromkeys(LATEST, "latest") | dict.fromkeys(FITTING, "*")
        manifest = {"private": True, "type": "module", "dependencies": packages}
        (self._node / "package.json").write_text(json.dumps(manifest), encoding="utf-8")
        options = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel", "error"]
        _run(["npm", "install", *options], cwd=self._node)
        self._has_node = True


def _run(command: Sequence[str], cwd: Path = ROOT) -> str:
    """Run a command of an installer, and return its output. Raises `RuntimeError` with its error."""
    env = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} … failed: {done.stderr[-2000:]}")
    return done.stdout


CACHE = ("cache read", "cost")
_MODELS = {"claude": "Anthropic", "gpt": "Chat Completions", "responses": "Responses API"}


def _variants(name: str, title: str, script: str, *before: str, **options: object) -> list[ClientProgram]:
    """Return a program with each of three models. `unsent` is a mapping by model here."""
    unsent = options.pop("unsent", {})
    assert isinstance(unsent, dict)
    return [
        ClientProgram(
            f"{name}-{model}",
            f"{title}, {api}",
            script,
            (*before, model),
            unsent=frozenset(unsent.get(model, ())),
            **options,  # type: ignore[arg-type]
        )
        for model, api in _MODELS.items()
    ]


_NO_REASONING = {"gpt": ["reasoning"], "responses": ["reasoning"]}
_AI_SDK = ("ai", "@ai-sdk/otel")
_LANGGRAPH = "langgraph_agent.py"
_STRANDS = ("strands-agents",)
CLIENTS: tuple[ClientProgram, ...] = (
    ClientProgram(
        "opentelemetry",
        "OpenTelemetry SDK, spans of Anthropic's library",
        "opentelemetry_sdk.py",
        packages=("opentelemetry-sdk", "anthropic"),
    ),
    *_variants(
        "openinference",
        "OpenInference",
        "openinference_traced.py",
        packages=("openinference-instrumentation-anthropic", "openinference-instrumentation-openai"),
    ),
    *_variants(
        "openllmetry",
        "OpenLLMetry",
        "openllmetry_traced.py",
        packages=("opentelemetry-instrumentation-anthropic", "opentelemetry-instrumentation-openai"),
    ),
    *(
        ClientProgram(
            f"pydantic-ai-{name}",
            f"pydantic-ai, {_MODELS[name]}",
            "pydantic_ai_agent.py",
            (model,),
            packages=("pydantic-ai-slim",),
        )
        for name, model in (
            ("claude", "anthropic:claude-haiku-4-5"),
            ("gpt", "openai-chat:gpt-4.1-mini"),
            ("responses", "openai-responses:gpt-4.1-mini"),
        )
    ),
    *_variants("logfire", "Logfire", "logfire_traced.py", packages=("logfire",)),
    *_variants(
        "langchain", "LangChain, traced by LangSmith", "langchain_agent.py", packages=("langchain", "langsmith")
    ),
    *_variants(
        "langgraph-openinference",
        "LangGraph, traced by OpenInference",
        _LANGGRAPH,
        "openinference",
        packages=("langgraph", "openinference-instrumentation-langchain"),
    ),
    *_variants(
        "langgraph-openllmetry",
        "LangGraph, traced by OpenLLMetry",
        _LANGGRAPH,
        "openllmetry",
        packages=("langgraph", "opentelemetry-instrumentation-langchain"),
        unsent=_NO_REASONING,
    ),
    *(
        ClientProgram(
            f"openai-agents-{api}",
            f"OpenAI Agents, {title}, with a handoff",
            "openai_agents_agent.py",
            (api,),
            unsent=frozenset(unsent),
            packages=("openai-agents", "openinference-instrumentation-openai-agents"),
        )
        for api, title, unsent in (
            ("chat", "Chat Completions", (*CACHE, "reasoning")),
            ("responses", "Responses API", ("system messages",)),
        )
    ),
    *(
        ClientProgram(
            f"ai-sdk-{model}",
            f"AI SDK, {title}",
            "ai_sdk_agent.mjs",
            (model,),
            unsent=frozenset(unsent),
            packages=_AI_SDK,
        )
        for model, title, unsent in (
            ("claude", "Anthropic", ("cache write 1h", "cost")),
            ("stream", "Anthropic, streamed", ("cache write 1h", "cost")),
            ("gpt", "Chat Completions", ("reasoning",)),
            ("responses", "Responses API", ("reasoning",)),
        )
    ),
    *(
        ClientProgram(
            f"langfuse-{model}",
            f"Langfuse, drop-in for OpenAI, {_MODELS[model]}",
            "langfuse_traced.py",
            (model,),
            packages=("langfuse",),
        )
        for model in ("gpt", "responses")
    ),
    *(
        ClientProgram(
            f"strands-{model}{'-latest' if form else ''}",
            f"Strands, {_MODELS[model]}{', newest conventions' if form else ''}",
            "strands_agent.py",
            (model, *form),
            unsent=frozenset(unsent),
            packages=_STRANDS,
        )
        for model, unsent in (("claude", ("cache write 1h", "cost")), ("gpt", ("reasoning",)))
        for form in ((), ("latest",))
    ),
    *(
        ClientProgram(
            f"adk-{version}",
            f"Google ADK, version {version} of its telemetry",
            "adk_agent.py",
            (version,),
            packages=("google-adk",),
        )
        for version in "12"
    ),
    ClientProgram(
        "ag-ui",
        "AG-UI client, runs an agent of the site",
        "ag_ui_front_end.mjs",
        packages=("@ag-ui/client",),
        reads=True,
    ),
    ClientProgram("mcp", "MCP client, reads a run of the site", "mcp_reader.py", packages=("mcp",), reads=True),
    ClientProgram(
        "eventsource", "eventsource, follows a run of the site", "follow_run.mjs", packages=("eventsource",), reads=True
    ),
)
