"""agentops.durable is independent of the server: it needs no server code, no Django and no settings."""

from __future__ import annotations

import json
import subprocess
import sys

from agentops.client.connection import API_VERSION, VERSION_HEADER
from agentops.durable.wire import WorkSite
from tests.support.machine import ROOT

SCRIPT = """
import json, sys
from agentops import durable
durable.durable("a")(lambda run, prompt: None)
names = {name for name in sys.modules if name.startswith("agentops.")}
own = {name for name in names if name.startswith(("agentops.client", "agentops.durable"))}
print(json.dumps([sorted(names - own), sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def test_no_server_code_is_imported(tmp_path: object) -> None:
    env = {"PATH": "", "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, cwd=str(tmp_path), capture_output=True, text=True, check=True
    )

    others, packages = json.loads(process.stdout)
    assert others == []
    assert not {"django", "rest_framework", "celery", "redis", "psycopg", "runs", "timeline"} & set(packages)


def test_requests_name_the_version_of_the_api() -> None:
    site = WorkSite("http://127.0.0.1:1", "aok_key", {})
    assert site.headers[VERSION_HEADER] == str(API_VERSION)
