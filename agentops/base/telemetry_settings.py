"""The settings of telemetry: sinks configured by the environment, and clients that may read the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentops.base.env import BadSetting, Reader

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


def read(env: Reader) -> TelemetrySettings:
    """Read the settings. Raises `BadSetting`."""
    sinks = [_langfuse(env), _otlp(env), _http(env), _jsonl(env)]
    directory = _jsonl_directory(env)
    return TelemetrySettings(
        sinks=tuple(sink for sink in sinks if sink is not None),
        roots=(*env.directories("AGENTOPS_TELEMETRY_ROOTS", []), *([directory] if directory else [])),
        ports=tuple(env.read("AGENTOPS_TELEMETRY_PORTS", [], _ports, "a comma list of port numbers")),
        modules=tuple(env.names("AGENTOPS_SINK_MODULES", [])),
        metrics_token=env.text("AGENTOPS_METRICS_TOKEN"),
        metrics_allow=tuple(env.proxies("AGENTOPS_METRICS_ALLOW")),
    )


def _langfuse(env: Reader) -> EnvironmentSink | None:
    public, secret = env.text("LANGFUSE_PUBLIC_KEY"), env.text("LANGFUSE_SECRET_KEY")
    base_url = env.site("LANGFUSE_BASE_URL") or env.site("LANGFUSE_HOST") or LANGFUSE_CLOUD
    protocol = env.choice("AGENTOPS_TELEMETRY_LANGFUSE", "otlp", PROTOCOLS)
    if bool(public) != bool(secret):
        raise BadSetting("LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY must be set together")
    if not public or protocol == "off":
        return None
    options = {"base_url": base_url, "public_key": public}
    return EnvironmentSink("langfuse", f"langfuse_{protocol}", options, {"secret_key": secret})


def _otlp(env: Reader) -> EnvironmentSink | None:
    url = env.text("AGENTOPS_TELEMETRY_OTLP_URL")
    headers = _read_headers(env, "AGENTOPS_TELEMETRY_OTLP_HEADERS")
    return EnvironmentSink("otlp", "otlp", {"url": url}, _with_headers(headers)) if url else None


def _http(env: Reader) -> EnvironmentSink | None:
    url = env.text("AGENTOPS_TELEMETRY_HTTP_URL")
    headers = _read_headers(env, "AGENTOPS_TELEMETRY_HTTP_HEADERS")
    return EnvironmentSink("http", "http", {"url": url, **_dialect(env)}, _with_headers(headers)) if url else None


def _jsonl(env: Reader) -> EnvironmentSink | None:
    is_on = env.boolean("AGENTOPS_TELEMETRY_JSONL", default=False)
    directory = _jsonl_directory(env)
    options = {**({"directory": directory} if directory else {}), **_dialect(env)}
    return EnvironmentSink("jsonl", "jsonl", options) if is_on or directory else None


def _dialect(env: Reader) -> dict[str, str]:
    return {"dialect": env.choice("AGENTOPS_TELEMETRY_DIALECT", "hooks", ("hooks", "log"))}


def _jsonl_directory(env: Reader) -> str:
    def parse(raw: str) -> str:
        if not Path(raw).is_absolute():
            raise ValueError
        return raw

    return env.read("AGENTOPS_TELEMETRY_JSONL_DIR", "", parse, "an absolute path")


def _with_headers(headers: Mapping[str, str]) -> dict[str, Any]:
    return {"headers": dict(headers)} if headers else {}


def _read_headers(env: Reader, name: str) -> dict[str, str]:
    none: dict[str, str] = {}
    return env.read(name, none, _headers, "a comma list of NAME=VALUE")


def _headers(raw: str) -> dict[str, str]:
    """Parse headers in the format of OpenTelemetry's OTEL_EXPORTER_OTLP_HEADERS."""
    headers = dict(part.strip().split("=", 1) for part in raw.split(",") if part.strip())
    if not all(name.strip() and value.isprintable() for name, value in headers.items()):
        raise ValueError
    return {name.strip(): value.strip() for name, value in headers.items()}


def _ports(raw: str) -> list[int]:
    ports = [int(part) for part in raw.split(",") if part.strip()]
    if not all(0 < port < 65536 for port in ports):
        raise ValueError
    return ports
