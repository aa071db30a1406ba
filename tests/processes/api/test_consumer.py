"""Consumers that trust the OpenAPI document and nothing else: schemathesis with all of its phases, for each key."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.accounts import with_key
from tests.support.factories import drive, make_agent, make_run
from tests.support.second_pass import cases
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
"path.session" = "{run}"
"path.job" = "{run}"

# A stream is described as a text, since OpenAPI 3.1 knows no events; tests/live reads them.
[[operations]]
include-path-regex = "stream$"
checks.response_schema_conformance.enabled = false

# A request of an AG-UI client is answered until its run ends, and no worker is here; tests/live reads the events.
[[operations]]
include-path-regex = "ag-ui$"
enabled = false

[checks.positive_data_acceptance]
expected-statuses = ["2xx", 304, 400, 401, 403, 404, 409, 422]

[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422]
"""


#: Scopes of a key → seconds. What a key may not do is refused before its body matters, the same on every database: the
#: run on PostgreSQL that follows the one on SQLite plays the first key alone. `make consumers` takes longer.
KEYS = {("read", "write", "ingest"): 50, ("read",): 20, ("write",): 20, ("ingest",): 20}
#: How much longer, and how many examples of each operation.
LONGER = int(os.environ.get("CONSUMERS_LONGER", "1"))
EXAMPLES = 4


@pytest.mark.slow
@pytest.mark.parametrize("scopes", cases(list(KEYS)), ids="+".join)
def test_a_consumer_finds_no_fault(
    transactional_db: None, web: WebThread, tmp_path: Path, scopes: tuple[str, ...]
) -> None:
    run = drive(make_run(make_agent(fixture="claude-code-7e")))
    places = {
        "project": run.project.slug,
        "run": run.pk,
        "agent": run.agent_config["agent_id"],
        "message": run.messages.earliest("position").pk,
        "call": run.tool_calls.earliest("pk").pk,
    }
    (tmp_path / "schemathesis.toml").write_text(CONFIG.format(**places))
    [(name, value)] = with_key(run.project, *scopes).items()
    command = [
        str(Path(sys.executable).with_name("st")), "run", f"{web.url}/api/schema",
        "--header", f"{name}: {value}", "--seed", "11", "--max-examples", str(EXAMPLES * LONGER),
        "--continue-on-failure", "--generation-database", "none", "--warnings", "off",
        "--max-time", str(KEYS[scopes] * LONGER),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60 + 2 * KEYS[scopes] * LONGER, check=False
    )

    assert done.returncode == 0, done.stdout[-6000:]
    tried = re.search(r"([0-9,]+) generated", done.stdout)
    assert tried is not None, done.stdout
    # On a machine that is busy; otherwise, hundreds.
    assert int(tried[1].replace(",", "")) > 5
