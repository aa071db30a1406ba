"""The environment variables of telemetry: their effect, and that an invalid one stops startup."""

from __future__ import annotations

import pytest

from agentops.base import backing_services
from agentops.base.backing_services import TelemetrySettings
from agentops.base.env import BadSetting, Reader


def read(monkeypatch: pytest.MonkeyPatch, **variables: str) -> TelemetrySettings:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return backing_services.read_telemetry(Reader())


def test_nothing_is_sent_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch) == TelemetrySettings()


def test_each_sink_has_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read(
        monkeypatch,
        LANGFUSE_PUBLIC_KEY="pk-lf-1",
        LANGFUSE_SECRET_KEY="sk-lf-1",
        LANGFUSE_HOST="https://langfuse.example.org",
        AGENTOPS_TELEMETRY_LANGFUSE="batch",
        AGENTOPS_TELEMETRY_OTLP_URL="https://collector.example.org/v1/traces",
        AGENTOPS_TELEMETRY_OTLP_HEADERS="Authorization=Bearer abc=, X-Team=ops",
        AGENTOPS_TELEMETRY_HTTP_URL="https://example.org/in",
        AGENTOPS_TELEMETRY_JSONL_DIR="/var/lib/agentops",
        AGENTOPS_TELEMETRY_PORTS="8443,4318",
        AGENTOPS_METRICS_ALLOW="10.0.0.0/8",
    )

    sinks = {sink.name: sink for sink in settings.sinks}
    assert {name: sink.kind for name, sink in sinks.items()} == {
        "langfuse": "langfuse_batch",
        "otlp": "otlp",
        "http": "http",
        "jsonl": "jsonl",
    }
    assert sinks["langfuse"].options["base_url"] == "https://langfuse.example.org"
    assert sinks["otlp"].secrets == {"headers": {"Authorization": "Bearer abc=", "X-Team": "ops"}}
    assert (settings.roots, settings.ports) == (("/var/lib/agentops",), (8443, 4318))
    assert "sk-lf-1" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AGENTOPS_TELEMETRY_LANGFUSE", "grpc"),
        ("AGENTOPS_TELEMETRY_OTLP_HEADERS", "no sign"),
        ("AGENTOPS_TELEMETRY_PORTS", "443,70000"),
        ("AGENTOPS_TELEMETRY_JSONL_DIR", "relative"),
        ("AGENTOPS_TELEMETRY_ROOTS", "/does/not/exist"),
        ("AGENTOPS_METRICS_ALLOW", "everybody"),
        ("LANGFUSE_BASE_URL", "langfuse.example.org"),
    ],
)
def test_an_invalid_value_stops_startup(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    with pytest.raises(BadSetting, match=name):
        read(monkeypatch, **{name: value})
