"""No secret of the site is visible where the kernel or another process shows the environment of tool processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runs.environment import is_secret, is_unmistakable, secret_values

ROOT = Path(__file__).resolve().parents[2]
CANARY = "canary-5f1c29d7"
SECRETS = {
    "DATABASE_URL": f"postgresql://agentops:{CANARY}@127.0.0.1:1/none",
    "REDIS_URL": f"redis://:{CANARY}@127.0.0.1:1/0",
    "SECRET_KEY": f"{CANARY}-and-much-more-of-it-than-fifty-characters-0123456789",
    "AGENTOPS_HEALTH_TOKEN": CANARY,
    "OPENAI_API_KEY": CANARY,
    "ANTHROPIC_API_KEY": f"sk-ant-{CANARY}",
    "AWS_SECRET_ACCESS_KEY": CANARY,
    "PGPASSWORD": CANARY,
    "SOME_SERVICE": f"https://user:{CANARY}@example.org/",
}
LOOK = """
import json, os, subprocess, sys, threading
from pathlib import Path

def environ(of):
    try:
        return Path(of).read_bytes().decode(errors="replace")
    except OSError as error:
        return type(error).__name__

def seen():
    child = subprocess.run([sys.executable, "-c", "import os; print(dict(os.environ))"], capture_output=True, text=True)
    pid = os.fork()
    if pid == 0:
        os._exit(int(sys.argv[1] in environ("/proc/self/environ")))
    of_fork = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, environ(f"/proc/{os.getppid()}/environ").encode())
        os._exit(0)
    os.close(write)
    os.wait()
    return {
        "own": environ("/proc/self/environ"), "thread": environ("/proc/thread-self/environ"),
        "child": child.stdout, "fork": of_fork, "from_child": open(read).read(),
        "kept": os.environ.get("OPENAI_API_KEY"), "path": os.environ.get("PATH"),
        "settings": [name for name in ("DATABASE_URL", "REDIS_URL", "SECRET_KEY") if name in os.environ],
    }
"""
HIDE = LOOK + "from runs.environment import hide_secrets\nhide_secrets()\nprint(json.dumps(seen()))"
WORKER = (
    LOOK
    + """
import django
django.setup()
from celery import signals
from django.db import connection
import runs.tasks

class Sender:
    pool_cls = "prefork"

signals.worker_init.send(Sender())
print(json.dumps(seen() | {"database": connection.settings_dict["PASSWORD"]}))
"""
)


def run(code: str, tmp_path: Path) -> dict[str, object]:
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "AGENTOPS_HOME": str(tmp_path / "home"),
        "HOME": "/root",
    }
    command = [sys.executable, "-c", code, CANARY]
    setting = {"DJANGO_SETTINGS_MODULE": "agentops.settings"}
    done = subprocess.run(
        command, env=env | SECRETS | setting, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("code", [HIDE, WORKER], ids=["the function", "a worker that starts"])
def test_no_secret_of_the_environment_is_visible(tmp_path, code):
    seen = run(code, tmp_path)

    for place in ("own", "thread", "child", "from_child"):
        assert CANARY not in str(seen[place]), place
    assert seen["fork"] == 0
    assert "AGENTOPS_HOME" in str(seen["child"]), "what is no secret is still there"
    assert (seen["kept"], seen["settings"]) == (CANARY, []), "vendors' libraries find their keys; settings were read"
    assert seen["path"] == os.environ["PATH"]
    assert seen.get("database", CANARY) == CANARY


def test_the_probe_detects_unhidden_secrets(tmp_path):
    seen = run(LOOK + "print(json.dumps(seen()))", tmp_path)

    assert all(CANARY in str(seen[place]) for place in ("own", "child"))
    assert seen["fork"] == 1


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("GEMINI_API_KEY", "x", True),
        ("HF_TOKEN", "x", True),
        ("GITHUB_PAT", "x", True),
        ("SENTRY_DSN", "x", True),
        ("AZURE_OPENAI_APIKEY", "x", True),
        ("DB_PASS", "x", True),
        ("MYSQLPASSWORD", "x", True),
        ("aws_secret", "x", True),
        ("BACKEND", "amqp://me:pw@host/", True),
        ("EMAIL_URL", "smtp://h", True),
        ("PATH", "/usr/bin", False),
        ("PWD", "here", False),
        ("HOME", "/root", False),
        ("PASSENGER", "x", False),
        ("AGENTOPS_HOME", "x", False),
        ("KEYBOARD", "us", False),
        ("AGENTOPS_BASE_URL", "https://host", False),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/etc/google.json", False),
        ("SSL_CERT_FILE", "/etc/ssl", False),
    ],
)
def test_which_variables_are_secrets(name, value, secret):
    assert is_secret(name, value) is secret


@pytest.mark.parametrize(
    ("value", "is_masked"),
    [
        ("gatewaykey1234", True),
        ("gatewaykey12", True),
        ("GatewayKey123456", True),
        ("k3y-of-us", True),
        ("postgres16", False),
        ("postgres", False),
        ("scram-sha-256", False),
        ("production-europe", False),
        ("123456789012", False),
        ("short1x", False),
        ("production-cluster-europe-west", True),
        ("a1" * 4096, False),
    ],
)
def test_which_values_are_masked_in_texts(value, is_masked):
    assert is_unmistakable(value) is is_masked


@pytest.mark.parametrize(
    ("name", "value", "masked"),
    [
        ("LITELLM_API_KEY", "gatewaykey1234", {"gatewaykey1234"}),
        ("AGENTOPS_TELEMETRY_HTTP_HEADERS", "Content-Type=application/json; charset=utf-8", set()),
        ("AGENTOPS_TELEMETRY_OTLP_HEADERS", "X-Tenant=production-cluster-europe-west", set()),
        (
            "AGENTOPS_TELEMETRY_OTLP_HEADERS",
            "X-Tenant=production-cluster-europe-west,authorization=Bearer t7Kq2Lm9",
            {"t7Kq2Lm9"},
        ),
        ("TOKEN_ENDPOINT", "https://login.example.org/oauth/token", set()),
        ("AUTH_ISSUER", "https://login.example.org/realms/staff", set()),
        ("AUTH_SERVER", "https://login.example.org/realms/staff", set()),
        ("KEY_VAULT_NAME", "production-vault-of-europe-west", set()),
        ("PASSWORD_HASHERS", "django.contrib.auth.hashers.Argon2PasswordHasher", set()),
        ("TOKEN_URL", "https://u:p4ss-w0rd-9@h.example.org/?api_key=k3y-0f-us&x=1", {"p4ss-w0rd-9", "k3y-0f-us"}),
        ("SENTRY_DSN", "https://a8Q2x7@sentry.example.org/1", {"https://a8Q2x7@sentry.example.org/1"}),
    ],
)
def test_which_parts_of_variables_are_masked_in_texts(monkeypatch, name, value, masked):
    assert is_secret(name, value), "child processes do not inherit it"
    before = secret_values()
    monkeypatch.setenv(name, value)
    assert secret_values() - before == masked


CHILD = """
import json
from runs.environment import for_own_process, hide_secrets
hide_secrets()
variables, secrets = for_own_process()
print(json.dumps({"variables": variables, "secrets": secrets}))
"""


def test_another_process_of_this_program_gets_the_secrets_outside_its_environment(tmp_path):
    seen = run(CHILD, tmp_path)

    assert CANARY not in str(seen["variables"])
    assert seen["secrets"] == SECRETS
    assert "AGENTOPS_HOME" in str(seen["variables"])
