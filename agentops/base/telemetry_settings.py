"""The settings of telemetry: sinks configured by the environment, and clients that may read the metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentops.base.env import Reader

LANGFUSE_CLOUD = "https://cloud.langfuse.com"
PROTOCOLS = ("otlp", "batch", "off")


@dataclass(frozen=True)
class EnvironmentSink:
    """A sink for the whole site, configured by the environment."""

    name: str
    kind: str
    options: Mapping[str, Any]
    secrets: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class TelemetrySettings:
    """The values of AGENTOPS_TELEMETRY_…, AGENTOPS_METRICS_… and LANGFUSE_…."""

    sinks: tuple[EnvironmentSink, ...] = ()
    #: Directories in which sinks may write files, in addition to the runs' directories in AGENTOPS_HOME.
    roots: tuple[str, ...] = ()
    #: Ports that sinks may use in addition to 443.
    ports: tuple[int, ...] = ()
    modules: tuple[str, ...] = ()
    metrics_token: str = field(default="", repr=False)
    #: Addresses and networks that may read the metrics without the token.
    metrics_allow: tuple[str, ...] = ()


def _langfuse(env: Reader) -> Iterator[EnvironmentSink]:
    #: Public key of a Langfuse project, to which the runs of all projects are sent. Required with
    #: `LANGFUSE_SECRET_KEY`.
    public = env.text("LANGFUSE_PUBLIC_KEY")
    #: Secret key of that project.
    secret = env.text("LANGFUSE_SECRET_KEY", secret=True)
    #: Address of Langfuse. Without it Langfuse Cloud in the EU, `https://cloud.langfuse.com`.
    base_url = env.site("LANGFUSE_BASE_URL")
    #: Older name of `LANGFUSE_BASE_URL`.
    older_url = env.site("LANGFUSE_HOST")
    #: `otlp` for Langfuse 3 and newer, `batch` for older servers, `off` to send nothing in spite of the keys.
    protocol = env.choice("AGENTOPS_TELEMETRY_LANGFUSE", "otlp", PROTOCOLS)
    env.require(bool(public) == bool(secret), "LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY must be set together")
    if public and protocol != "off":
        options = {"base_url": base_url or older_url or LANGFUSE_CLOUD, "public_key": public}
        yield EnvironmentSink("langfuse", f"langfuse_{protocol}", options, {"secret_key": secret})


def _otlp(env: Reader) -> Iterator[EnvironmentSink]:
    #: URL for traces by OTLP/HTTP, such as `https://collector.example.org/v1/traces`.
    url = env.text("AGENTOPS_TELEMETRY_OTLP_URL")
    #: Headers of these requests: `NAME=VALUE`, with commas between them.
    headers = env.headers("AGENTOPS_TELEMETRY_OTLP_HEADERS")
    if url:
        yield EnvironmentSink("otlp", "otlp", {"url": url}, _with_headers(headers))


def _with_headers(headers: Mapping[str, str]) -> dict[str, Any]:
    return {"headers": dict(headers)} if headers else {}


def read(env: Reader) -> TelemetrySettings:
    """Read the settings. Raises `BadSetting`."""
    sinks = [*_langfuse(env), *_otlp(env)]
    #: URL for events as JSON.
    url = env.text("AGENTOPS_TELEMETRY_HTTP_URL")
    #: Headers of these requests: `NAME=VALUE`, with commas between them.
    headers = env.headers("AGENTOPS_TELEMETRY_HTTP_HEADERS")
    #: Names of events in both: `hooks`, such as `pre_tool_use`, or `log` for all events under the names of the log.
    dialect = env.choice("AGENTOPS_TELEMETRY_DIALECT", "hooks", ("hooks", "log"))
    if url:
        sinks.append(EnvironmentSink("http", "http", {"url": url, "dialect": dialect}, _with_headers(headers)))
    #: Write events to files, one for each run, below `AGENTOPS_HOME/telemetry`.
    is_on = env.boolean("AGENTOPS_TELEMETRY_JSONL", default=False)
    #: Absolute path of another directory for these files.
    directory = env.absolute_path("AGENTOPS_TELEMETRY_JSONL_DIR")
    if is_on or directory:
        options = {"dialect": dialect, **({"directory": directory} if directory else {})}
        sinks.append(EnvironmentSink("jsonl", "jsonl", options))
    #: Directories below which the sinks of projects may write files.
    roots = env.directories("AGENTOPS_TELEMETRY_ROOTS")
    return TelemetrySettings(
        sinks=tuple(sinks),
        roots=(*roots, *([directory] if directory else [])),
        #: Ports of public hosts that sinks may send to, besides 443.
        ports=tuple(env.ports("AGENTOPS_TELEMETRY_PORTS")),
        #: Python modules whose kinds of sinks can be used, besides those of installed packages.
        modules=tuple(env.names("AGENTOPS_SINK_MODULES", [])),
        #: Token with which `/metrics` may be read, sent as `Authorization: Bearer TOKEN`.
        metrics_token=env.text("AGENTOPS_METRICS_TOKEN", secret=True),
        #: Addresses and networks that may read `/metrics` without the token, besides loopback.
        metrics_allow=tuple(env.proxies("AGENTOPS_METRICS_ALLOW")),
    )
