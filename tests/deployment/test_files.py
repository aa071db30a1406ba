"""Checks that the files of a deployment agree with each other and with the code."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deployment import FILE, OURS, VARIABLE, parsed, service, value, variables
from tests.support.machine import ROOT

#: Services that do one task and exit.
ONCE = {"migrate", "proxy-volume"}
#: The capabilities of services that need any.
CAPABILITIES = {"proxy": ["NET_BIND_SERVICE"], "proxy-volume": ["CHOWN"]}
#: The number that docs/guides/processes.md starts.
WORKERS = 4
#: Connections for migrations, for a backup, and for superusers (reserved by PostgreSQL).
RESERVED = 20


def test_compose_file_is_valid() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(parsed()["services"]))
def test_every_lasting_service_has_a_health_check(name: str) -> None:
    """The other services exit when they are done."""
    assert ("healthcheck" in service(name)) == (name not in ONCE)


@pytest.mark.parametrize("name", sorted(parsed()["services"]))
def test_every_process_has_minimal_privileges(name: str) -> None:
    confined = service(name)

    assert confined["read_only"]
    assert confined["cap_drop"] == ["ALL"]
    assert confined.get("cap_add", []) == CAPABILITIES.get(name, [])
    assert confined["security_opt"] == ["no-new-privileges:true"]
    assert not confined.get("privileged")
    assert 0 < confined["pids_limit"] <= 512
    assert re.fullmatch(r"[0-9]+[mg]", confined["mem_limit"])
    # Default: the user of the image, which is not root (see below).
    assert confined.get("user", "agentops") not in {"root", "0", "0:0"} or name == "proxy-volume"


@pytest.mark.parametrize("name", OURS)
def test_processes_have_a_name(name: str) -> None:
    assert service(name)["environment"]["AGENTOPS_PROCESS_NAME"] == f"agentops-{name}"


def test_networks_separate_unrelated_services() -> None:
    networks: dict[str, Any] = parsed()["networks"]
    services: dict[str, dict[str, Any]] = parsed()["services"]
    members = {
        network: {name for name, each in services.items() if network in each.get("networks", [])}
        for network in networks
    }

    assert members == {
        "edge": {"proxy"},
        "app": {"proxy", "web", "stream"},
        "data": {*OURS, "flower", "postgres", "redis"},
        "outside": {"worker"},
        "monitor": {"flower"},
    }
    assert {name for name, each in networks.items() if (each or {}).get("internal")} == {"app", "data"}
    assert {name for name, each in services.items() if "networks" not in each} == {"proxy-volume"}
    assert services["proxy-volume"]["network_mode"] == "none"


def test_images_are_named_by_digest() -> None:
    """A tag may point to another image tomorrow."""
    images = {each["image"] for each in parsed()["services"].values()} - {"agentops", "agentops-flower"}
    [base] = re.findall(r"^ARG PYTHON=(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)

    assert {image.partition(":")[0] for image in images} == {"caddy", "postgres", "redis"}
    for image in [*images, base]:
        assert re.fullmatch(r"[a-z]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}", image), image
    assert len(images) == 3, "one service has another version of an image than the others"
    sources = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert set(sources) == {"${PYTHON}"}


def test_make_digests_writes_the_current_digests(tmp_path: Path) -> None:
    """A script replaces Docker. It returns one digest for each tag."""
    for name in ("docker-compose.yml", "Dockerfile", "Makefile"):
        shutil.copy(ROOT / name, tmp_path)
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text('#!/bin/sh\nprintf "sha256:%s\\n" "$(printf %s "$4" | sha256sum | cut -d" " -f1)"\n')
    docker.chmod(0o755)

    subprocess.run(
        ["make", "digests"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        env={"PATH": f"{docker.parent}:{os.environ['PATH']}"},
    )

    written = (tmp_path / "docker-compose.yml").read_text() + (tmp_path / "Dockerfile").read_text()
    images = re.findall(r"([a-z]+:[a-z0-9.-]+)@sha256:([0-9a-f]{64})", written)
    assert {image.partition(":")[0] for image, _ in images} == {"caddy", "postgres", "redis", "python"}
    assert all(digest == hashlib.sha256(image.encode()).hexdigest() for image, digest in images)


def test_pools_of_all_processes_fit_into_postgresql() -> None:
    """The sum includes four workers, and the connections reserved for PostgreSQL and its administrators."""
    [allowed] = re.findall(r"max_connections=([0-9]+)", " ".join(service("postgres")["command"]))
    pools = {name: int(value(service(name)["environment"]["AGENTOPS_DB_POOL"])) for name in OURS}
    count = {name: processes_of(name) for name in OURS if name not in ONCE} | {"worker": WORKERS}

    assert sum(pools[name] * count[name] for name in count) <= int(allowed) - RESERVED
    declared = {int(value(service(name)["environment"]["AGENTOPS_DB_PROCESSES"])) for name in OURS}
    assert declared == {sum(count.values())}
    assert all(pool >= int(variables()["AGENTOPS_CONCURRENCY"]) + 4 for pool in pools.values())


def processes_of(name: str) -> int:
    words: list[str] = service(name)["command"]
    return int(words[words.index("--processes") + 1]) if "--processes" in words else 1


def test_only_the_proxy_has_public_ports() -> None:
    services: dict[str, dict[str, Any]] = parsed()["services"]

    assert [name for name, each in services.items() if "ports" in each] == ["proxy", "flower"]
    assert all(port.startswith("127.0.0.1:") for port in services["flower"]["ports"])


def test_flower_is_optional_and_read_only() -> None:
    flower = service("flower")

    assert flower["profiles"] == ["flower"]
    assert "--read-only" in flower["command"][-1]
    # Events need remote control, which workers refuse.
    assert "--enable-events=false" in flower["command"][-1]
    assert "env_file" not in flower
    assert "DATABASE_URL" not in flower["environment"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert flower["build"]["args"]["EXTRA"] in extras


def test_flower_does_not_start_without_a_password() -> None:
    command = [value(word) for word in service("flower")["command"]]
    login = value(service("flower")["environment"]["FLOWER_BASIC_AUTH"])
    environment = {"PATH": os.environ["PATH"], "FLOWER_BASIC_AUTH": login}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (78, "FLOWER_PASSWORD is empty. Set it in .env.\n")


def test_extra_of_the_image_has_hashes_from_the_lock_file(tmp_path: Path) -> None:
    """Run the command of the Dockerfile. uv takes the hashes of dependencies from the constraints."""
    [command] = re.findall(r"sed -n \"[^\"]+\" requirements-dev.lock > extra.txt", (ROOT / "Dockerfile").read_text())
    shutil.copy(ROOT / "requirements-dev.lock", tmp_path)
    subprocess.run(["sh", "-c", command], cwd=tmp_path, env={"PATH": os.environ["PATH"], "EXTRA": "flower"}, check=True)

    first, *hashes, _ = (tmp_path / "extra.txt").read_text().splitlines()
    assert re.fullmatch(r"flower==[0-9.]+ \\", first)
    assert hashes
    assert all(line.startswith("    --hash=sha256:") for line in hashes)


def test_both_lock_files_pin_the_same_versions() -> None:
    """The image with an extra installs packages from both files."""
    pinned, developers = (
        set(re.findall(r"^[a-z0-9._-]+==[^ ;]+", (ROOT / name).read_text(), re.MULTILINE))
        for name in ("requirements.lock", "requirements-dev.lock")
    )
    assert pinned <= developers


def test_secrets_have_no_default() -> None:
    text = FILE.read_text()

    for name in ("SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD"):
        assert set(re.findall(rf"\$\{{{name}([^}}]*)\}}", text)) == {":?set it in .env"}


def test_example_environment_names_all_compose_variables() -> None:
    example = (ROOT / ".env.example").read_text()
    named = set(re.findall(r"^#? ?([A-Z_]+)=", example, re.MULTILINE))

    assert set(VARIABLE.findall(FILE.read_text())) <= named
    # Each additional name must exist, as a setting or as a provider's API key.
    settings = (ROOT / "docs" / "reference" / "settings.md").read_text()
    langfuse = (ROOT / "docker-compose.langfuse.yml").read_text()
    for name in named - set(VARIABLE.findall(FILE.read_text() + langfuse)):
        assert name.endswith("_API_KEY") or f"`{name}`" in settings, name


def test_stop_grace_period_suffices_for_a_worker() -> None:
    """AGENTOPS_GRACE_S for unfinished work, plus the time that Celery's loop needs."""
    assert int(service("worker")["stop_grace_period"].removesuffix("s")) >= 25 + 10


def test_image_contains_existing_files_and_is_not_root() -> None:
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


def test_proxy_limits_slow_clients_and_request_sizes() -> None:
    """The proxy accepts no larger headers or bodies than its upstreams. A body timeout would cut streams off."""
    caddyfile = parsed()["configs"]["caddyfile"]["content"]

    assert re.search(r"timeouts \{\s+read_header 10s\s+idle 2m\s+\}\s+max_header_size 64KB", caddyfile)
    assert "read_body" not in caddyfile
    assert re.search(r"request_body @others \{\s+max_size 6MB", caddyfile)
    assert re.search(r"header \{\s+-Server\s+-Via\s+\}", caddyfile)
    assert re.search(r"^\s*admin off$", caddyfile, re.MULTILINE)


def test_proxy_passes_streams_to_the_stream_process() -> None:
    caddyfile = parsed()["configs"]["caddyfile"]["content"]

    assert re.search(r"@streams path \*/stream \*/ag-ui\s", caddyfile)
    assert re.search(r"handle @streams \{\s+reverse_proxy stream:8000", caddyfile)
    assert yaml.safe_load(FILE.read_text())["services"]["proxy"]["configs"][0]["source"] == "caddyfile"


def test_make_trusts_the_system_certificates(tmp_path: Path) -> None:
    """They include the certificates of a proxy. The user's variables take precedence."""
    bundle = tmp_path / "system.pem"
    bundle.touch()
    # As if the lock file were newer than the installed packages.
    command = ["make", "--dry-run", "--what-if", "requirements-dev.lock", "env"]

    def planned(**variables: str) -> str:
        env = {"PATH": os.environ["PATH"], "SSL_CERT_FILE": str(bundle), **variables}
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout

    for line in planned().splitlines():
        if "pip install" in line or "pip sync" in line:
            assert f'UV_SYSTEM_CERTS=true REQUESTS_CA_BUNDLE="{bundle}" ' in line, line
    assert 'UV_SYSTEM_CERTS=false REQUESTS_CA_BUNDLE="own.pem" ' in planned(
        UV_SYSTEM_CERTS="false", REQUESTS_CA_BUNDLE="own.pem"
    )
