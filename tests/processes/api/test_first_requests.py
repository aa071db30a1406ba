"""Test that the first requests and the first step of a process are fast, and import nothing in a transaction."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.support.machine import ROOT

pytestmark = pytest.mark.django_db(transaction=True)
OWN = ("agentops.", "runs.", "timeline.")
#: Maximum processor time in seconds between two statements of a transaction.
MOST_S = 0.2


def test_first_requests_and_first_step_import_nothing_in_a_transaction(process_env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.programs.first_requests"],
        env=process_env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])

    assert all(status < 400 for status in report["statuses"].values()), report["statuses"]
    # The vendor's library is loaded on its first use, between two transactions.
    assert any(each["module"] == "anthropic" for each in report["imports"])
    assert [each for each in report["imports"] if each["in_transaction"]] == []
    own = [each for each in report["imports"] if each["module"].startswith(OWN)]
    # `/readyz` reads the migrations, with their operation for one vendor.
    assert [each for each in own if not re.search(r"\.migrations|\.vendor_sql$", each["module"])] == []
    assert {place: took for place, took in report["longest_s"].items() if took > MOST_S} == {}
