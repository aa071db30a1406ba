"""Test the API as a client that knows only the OpenAPI document: all phases of schemathesis, with each kind of key."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.factories import drive, make_agent, make_run, with_key
from tests.support.second_pass import cases
from tests.support.web_server import WebThread

#: Requests that the document allows may still be refused: an unknown cursor (400), a missing agent, a run that is not
#: paused, or an action that requires an admin.
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


#: Maps scopes of a key to seconds. A missing scope is refused before the body is read, on every database alike, so the
#: PostgreSQL pass after the SQLite pass uses only the first key. `make consumers` runs longer.
KEYS = {("read", "write", "ingest"): 50, ("read",): 20, ("write",): 20, ("ingest",): 20}
#: Factor for the durations, and examples per operation.
LONGER = int(os.environ.get("CONSUMERS_LONGER", "1"))
EXAMPLES = 4


@pytest.mark.slow
@pytest.mark.parametrize("scopes", cases(list(KEYS)), ids="+".join)
def test_the_api_conforms_to_its_document(
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
        str(Path(sys.executable).with_name("st")),
        "run",
        f"{web.url}/api/schema",
        "--header",
        f"{name}: {value}",
        "--seed",
        "11",
        "--max-examples",
        str(EXAMPLES * LONGER),
        "--continue-on-failure",
        "--generation-database",
        "none",
        "--warnings",
        "off",
        "--max-time",
        str(KEYS[scopes] * LONGER),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60 + 2 * KEYS[scopes] * LONGER, check=False
    )

    assert done.returncode == 0, done.stdout[-6000:]
    tried = re.search(r"([0-9,]+) generated", done.stdout)
    assert tried is not None, done.stdout
    # The minimum on a busy machine; hundreds otherwise.
    assert int(tried[1].replace(",", "")) > 5
