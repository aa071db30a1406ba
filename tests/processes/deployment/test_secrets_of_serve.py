"""Test that `agentops serve`, with one or several processes, hides its secrets from other processes and still uses
them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.command_line import MANAGE
from tests.support.machine import free_port
from tests.support.timing import eventually

CANARY = "canary-5f1c29d7"
TOKEN = f"{CANARY}-of-readyz"
SECRETS = {
    "SECRET_KEY": f"{CANARY}-and-much-more-of-it-than-fifty-characters-0123456789",
    "AGENTOPS_HEALTH_TOKEN": TOKEN,
    "OPENAI_API_KEY": CANARY,
}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("processes", ["1", "2"])
def test_no_process_of_the_site_exposes_its_secrets(processes: str, migrated_home: Path, tmp_path: Path) -> None:
    port = free_port()
    env = {"PATH": os.environ["PATH"], "AGENTOPS_HOME": str(migrated_home), "PORT": str(port)} | SECRETS
    with (tmp_path / "log").open("wb") as log:
        command = [*MANAGE, "serve", "--processes", processes]
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    of_children: dict[int, str] = {}
    try:

        def serves() -> bool:
            # Check also while children load: their initial environment must not contain secrets. Request first, because
            # the answer waits until a child can give it.
            serving = answers(port)
            for child in children(server.pid):
                of_children[child] = of_children.get(child, "") + environ_of(child)
            return serving

        eventually(serves, why="it serves")
        eventually(lambda: CANARY not in environ_of(server.pid), within_s=1, why="its secrets are hidden")
        assert not [child for child, seen in of_children.items() if CANARY in seen]
        assert bool(of_children) is (processes != "1")
        # It still uses its secrets.
        proxied = {"Authorization": f"Bearer {TOKEN}", "X-Forwarded-For": "203.0.113.9"}
        for _ in range(4):
            assert httpx.get(f"http://127.0.0.1:{port}/readyz", headers=proxied).json()["ready"] is True
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0, (tmp_path / "log").read_text()
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(20)


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def children(of: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{of}/task/{of}/children").read_text().split()]
    except OSError:
        return []


def environ_of(process: int) -> str:
    """Return the environment of a process as other processes of the user see it, or "" if the kernel forbids it."""
    try:
        return Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""
