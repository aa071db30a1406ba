"""Upload files that expand to gigabytes to one project of a site in one process: another project does not wait."""

from __future__ import annotations

import io
import json
import time
import zipfile
from statistics import quantiles

import httpx

from tests.support.command_line import Site

#: Requests of the other project before the attack, and at least as many during it.
REQUESTS = 40
FILES = 4
#: Limit in seconds by which the 95th percentile may rise during the attack.
LONGEST_S = 0.5


def attack() -> bytes:
    """Return an archive of 2 KB in which 4,000 messages refer to one text of 1 MiB."""
    messages = [{"role": "user", "content": "attachment://a"}] * 4000
    sample = {"id": "1", "epoch": 1, "messages": messages, "attachments": {"a": "x" * 1024 * 1024}}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("header.json", json.dumps({"eval": {"task": "attack", "run_id": "r", "task_id": "t"}}))
        packed.writestr("samples/1_epoch_1.json", json.dumps(sample))
    return content.getvalue()


def client_of(site: Site, project: str) -> httpx.Client:
    created = json.loads(site.agentops("key", "create", "--project", project, "--scopes", "read,ingest", "--json"))
    return httpx.Client(base_url=site.url, timeout=60, headers={"Authorization": f"Bearer {created['key']}"})


def seconds_of_a_list(client: httpx.Client) -> float:
    began = time.monotonic()
    assert client.get("/api/projects/other/agent-runs").status_code == 200
    return time.monotonic() - began


def test_another_project_does_not_wait(seasoned: Site) -> None:
    seasoned.up()
    seasoned.agentops("project", "create", "other")
    with client_of(seasoned, "demo") as attacker, client_of(seasoned, "other") as other:
        before = [seconds_of_a_list(other) for _ in range(REQUESTS)]
        for _ in range(FILES):
            url = "/api/projects/demo/imports?name=attack.eval"
            upload = attacker.post(url, content=attack(), headers={"Content-Type": "application/octet-stream"})
            assert upload.status_code == 202

        def states() -> set[str]:
            return {row["state"] for row in attacker.get("/api/projects/demo/imports").json()["results"]}

        during = []
        while not states() <= {"refused"}:
            during += [seconds_of_a_list(other) for _ in range(5)]
        refused = attacker.get("/api/projects/demo/imports").json()["results"]
        assert {row["error_code"] for row in refused} == {"import_too_large"}
        assert len(during) >= REQUESTS
        p95_before, p95 = quantiles(before, n=20)[-1], quantiles(during, n=20)[-1]
        assert p95 < p95_before + LONGEST_S, f"{p95_before:.3f} s before, {p95:.3f} s during the attack"
    assert seasoned.end() == 0
