"""A consumer that trusts the OpenAPI document and nothing else: schemathesis with all of its phases.

On PostgreSQL, which is the pickier one about what it stores.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.accounts import with_key
from tests.support.factories import drive, make_agent, make_run
from tests.support.web.server import WebThread

#: What is valid by the document may still be refused: a cursor that no list gave (400), an agent that is not there, a
#: run that is not paused, an admin's wish.
CONFIG = """
[parameters]
"path.project" = "{project}"
"path.run_id" = "{run}"
"path.agent" = "{agent}"
"path.message_id" = "{message}"
"path.call_id" = "{call}"

[checks.positive_data_acceptance]
expected-statuses = ["2xx", 304, 400, 401, 403, 404, 409, 422]

[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422]
"""


@pytest.mark.slow
@pytest.mark.postgres
def test_a_consumer_finds_no_fault(transactional_db: None, web: WebThread, tmp_path: Path) -> None:
    run = drive(make_run(make_agent(fixture="claude-code-7e")))
    places = {
        "project": run.project.slug,
        "run": run.pk,
        "agent": run.agent_config["agent_id"],
        "message": run.messages.earliest("position").pk,
        "call": run.tool_calls.earliest("pk").pk,
    }
    (tmp_path / "schemathesis.toml").write_text(CONFIG.format(**places))
    [(name, value)] = with_key(run.project, "read", "write").items()
    command = [
        str(Path(sys.executable).with_name("st")), "run", f"{web.url}/api/schema",
        "--header", f"{name}: {value}", "--exclude-path-regex", "stream$", "--seed", "11", "--max-examples", "4",
        "--continue-on-failure", "--generation-database", "none", "--warnings", "off",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)

    assert done.returncode == 0, done.stdout[-6000:]
    tried = re.search(r"([0-9,]+) generated", done.stdout)
    assert tried is not None, done.stdout
    assert int(tried[1].replace(",", "")) > 500
