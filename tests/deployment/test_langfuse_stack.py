"""docker-compose.langfuse.yml: a valid file. Its Langfuse has the project to which the workers send."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml
from pytest_django import Settings

from runs.telemetry.http_sinks import LangfuseOptions
from tests.support.machine import ROOT

FILE = ROOT / "docker-compose.langfuse.yml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text())["services"]
LANGFUSES = sorted(set(SERVICES) - {"worker"})


def python(program: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a Python program with these variables and the site's settings."""
    env = os.environ | {**variables, "DJANGO_SETTINGS_MODULE": "agentops.settings"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)


def test_langfuse_compose_file_is_valid() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_langfuse_services_are_in_the_profile_and_pinned() -> None:
    assert set(LANGFUSES) == {
        f"langfuse-{name}" for name in ("web", "worker", "clickhouse", "minio", "redis", "postgres")
    }
    for name in LANGFUSES:
        assert SERVICES[name]["profiles"] == ["langfuse"]
        assert re.search(r":(RELEASE\.)?[0-9]+[.-][0-9].*$", SERVICES[name]["image"]), name
    # The main file is used together with this one, so names must not clash.
    ours = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert set(ours["services"]) & set(SERVICES) == {"worker"}
    assert {name for name, each in SERVICES.items() if "ports" in each} == {"langfuse-web"}
    assert SERVICES["langfuse-web"]["ports"] == ["127.0.0.1:3000:3000"]


def test_workers_send_to_the_project_that_langfuse_creates(settings: Settings) -> None:
    worker, web = SERVICES["worker"]["environment"], SERVICES["langfuse-web"]["environment"]

    assert worker["LANGFUSE_PUBLIC_KEY"] == web["LANGFUSE_INIT_PROJECT_PUBLIC_KEY"]
    assert worker["LANGFUSE_SECRET_KEY"] == web["LANGFUSE_INIT_PROJECT_SECRET_KEY"]
    assert "langfuse" in set(SERVICES["worker"]["networks"]) & set(SERVICES["langfuse-web"]["networks"])
    # The settings need no other variables.
    program = (
        "from django.conf import settings as s; [sink] = s.AGENTOPS_TELEMETRY.sinks;"
        "print(sink.name, sink.kind, sink.options['base_url'], sink.options['public_key'], *sink.secrets)"
    )
    keys = {"LANGFUSE_PUBLIC_KEY": "pk-lf-1", "LANGFUSE_SECRET_KEY": "sk-lf-1"}
    env = os.environ | {**worker, **keys, "DJANGO_SETTINGS_MODULE": "agentops.settings"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["langfuse", "langfuse_otlp", "http://langfuse-web:3000", "pk-lf-1", "secret_key"], (
        done
    )
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = worker["AGENTOPS_ALLOW_PRIVATE_SINKS"] == "true"
    assert LangfuseOptions(base_url=worker["LANGFUSE_BASE_URL"], public_key="pk-lf-1")


def test_langfuse_secrets_have_no_default_and_are_in_the_example() -> None:
    text = FILE.read_text()
    variables = re.findall(r"(?<!\$)\$\{([A-Z_]+)([^}]*)\}", text)
    assert {name for name, default in variables if default != ":?set it in .env"} == {"LANGFUSE_USER_EMAIL"}
    example = (ROOT / ".env.example").read_text()
    assert {name for name, _ in variables} <= set(re.findall(r"^#? ?([A-Z_]+)=", example, re.MULTILINE))


@pytest.mark.parametrize("missing", ["LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"])
def test_one_key_without_the_other_prevents_the_start(missing: str) -> None:
    keys = {"LANGFUSE_PUBLIC_KEY": "pk-lf-1", "LANGFUSE_SECRET_KEY": "sk-lf-1"} | {missing: ""}
    env = os.environ | {**keys, "DJANGO_SETTINGS_MODULE": "agentops.settings"}
    program = "from django.conf import settings; settings.DEBUG"
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY must be set together" in done.stderr
