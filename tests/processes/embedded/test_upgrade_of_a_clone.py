"""Test `git pull && make up` with additional packages and active runs."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import Site
from tests.support.deployment import Checkout, make_wheel
from tests.support.machine import ROOT
from tests.support.timing import eventually

#: Starts a site twice with make, which takes about half a minute. tests/deployment/test_own_requirements.py covers only
#: the installation.
pytestmark = pytest.mark.slow
#: The run of the demo that takes minutes.
LIVE = "demo-replay"
REFUND = "SELECT status, result FROM agent_runs WHERE title = 'Refund 500 cents of A-17.'"
RECOVERED = "SELECT count(*) FROM agent_run_events WHERE type = 'run.recovered'"


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    checkout = Checkout.make(tmp_path)
    shutil.copytree(ROOT / "examples" / "shop_extension", tmp_path / "shop_extension")
    make_wheel(checkout.wheels, "vendor_client", "3.1")
    checkout.require("../shop_extension", "vendor_client")
    return checkout


@pytest.fixture
def site(checkout: Checkout) -> Iterator[Site]:
    site = Site(checkout.directory / ".agentops", command=["make"])
    yield site
    kill(site)


def kill(site: Site) -> None:
    """End the site's process and then make."""
    lock = site.home / "lock"
    owner = lock.read_text().partition("\n")[0].split(":") if lock.exists() else []
    if site.alive and len(owner) > 2:
        os.kill(int(owner[-2]), signal.SIGKILL)
    site.kill()


def test_packages_an_extension_and_runs_survive_an_upgrade(checkout: Checkout, site: Site) -> None:
    shell = checkout.env()
    site.up(**shell)
    clerk = str(checkout.directory / "examples" / "shop_extension" / "agent.toml")
    checkout.run("agentops", "agent", "apply", clerk, "--project", "demo")
    words = ("agent", "run", "clerk", "--project", "demo", "--prompt", "Refund 500 cents of A-17.", "--json")
    checkout.run("agentops", *words)
    eventually(lambda: site.rows(REFUND) == [("waiting", "")], why="the refund waits for an approval")
    eventually(lambda: site.runs()[LIVE][1] >= 2, why="the live run is going on")
    kill(site)
    status, steps = site.runs()[LIVE]
    assert status == "running"

    checkout.release("2.0")
    checkout.pull()
    site.up(**shell)

    assert checkout.installed() == {"steady": "2.0", "vendor-client": "3.1", "shop-extension": "1.0"}
    [(run_id,)] = site.rows("SELECT id FROM agent_runs WHERE title LIKE 'Refund 500%'")
    checkout.run("agentops", "agent", "approve", run_id)
    eventually(lambda: site.rows(REFUND)[0][0] == "completed", why="the tool of the extension is called")
    assert site.rows(REFUND)[0][1] == "The shop says: Refunded 500 cents of A-17."
    eventually(lambda: site.runs()[LIVE][1] > steps, why="the live run continues")
    assert site.rows(RECOVERED)[0][0] >= 1
    assert "All invariants hold" in checkout.run("agentops", "check_invariants")
    assert "0 differ" in checkout.run("agentops", "check_runs")
