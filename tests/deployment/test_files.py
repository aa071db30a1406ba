"""The files that describe a deployment agree with each other and with the code."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.deployment.compose import FILE, OURS, ROOT, VARIABLE, parsed, service


def test_the_compose_file_is_one() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(parsed()["services"]))
def test_every_service_that_stays_up_is_looked_at(name: str) -> None:
    """But the proxy, which has nothing to ask it with."""
    assert ("healthcheck" in service(name)) == (name not in {"migrate", "proxy"})


@pytest.mark.parametrize("name", OURS)
def test_our_processes_may_do_little(name: str) -> None:
    ours = service(name)

    assert ours["read_only"]
    assert ours["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in ours["security_opt"]
    assert "ports" not in ours
    assert ours["environment"]["AGENTOPS_PROCESS_NAME"] == f"agentops-{name}"


def test_nothing_is_open_but_the_proxy() -> None:
    services: dict[str, dict[str, Any]] = parsed()["services"]

    assert [name for name, each in services.items() if "ports" in each] == ["proxy"]


def test_secrets_have_no_default() -> None:
    text = FILE.read_text()

    for name in ("SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD"):
        assert set(re.findall(rf"\$\{{{name}([^}}]*)\}}", text)) == {":?set it in .env"}


def test_the_example_of_an_environment_names_what_the_compose_file_asks_for() -> None:
    example = (ROOT / ".env.example").read_text()
    named = set(re.findall(r"^#? ?([A-Z_]+)=", example, re.MULTILINE))

    assert set(VARIABLE.findall(FILE.read_text())) <= named
    # And what it names beyond that exists: a variable of ours, or a provider's.
    readme = (ROOT / "README.md").read_text()
    for name in named - set(VARIABLE.findall(FILE.read_text())):
        assert name.endswith("_API_KEY") or f"`{name}`" in readme, name


def test_a_worker_has_the_time_that_it_takes_to_end() -> None:
    """AGENTOPS_GRACE_S for what is begun, and what Celery's loop takes."""
    assert int(service("worker")["stop_grace_period"].removesuffix("s")) >= 25 + 10


def test_the_image_holds_what_exists_and_is_not_root() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    ignored = (ROOT / ".dockerignore").read_text()

    for name in copied:
        assert (ROOT / name).exists(), name
        assert f"!{name}\n" in ignored, f".dockerignore leaves {name} out"
    assert [line for line in lines if line.startswith("USER ")] == ["USER agentops"]
    assert any("--require-hashes" in line for line in lines)


def test_the_proxy_passes_streams_on_to_their_own_process() -> None:
    caddyfile = parsed()["configs"]["caddyfile"]["content"]

    assert re.search(r"@streams path \*/stream\s", caddyfile)
    assert re.search(r"handle @streams \{\s+reverse_proxy stream:8000", caddyfile)
    assert yaml.safe_load(FILE.read_text())["services"]["proxy"]["configs"][0]["source"] == "caddyfile"
