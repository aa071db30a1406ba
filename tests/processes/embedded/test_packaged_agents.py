"""Agents of an installed package on a site of `agentops up`: started from the form, killed, and continued."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support import packaged
from tests.support.command_line import Site
from tests.support.timing import eventually

OF_AGENT = (
    "SELECT r.status, r.result, r.lease_epoch FROM agent_runs r JOIN runs_agent a ON a.id = r.agent_id"
    " WHERE a.slug = ? ORDER BY r.created_at"
)


def test_a_run_of_the_form_survives_a_kill_of_the_site(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    packaged.install(folder, monkeypatch)
    quick = {"AGENTOPS_LEASE_S": "2", "AGENTOPS_RENEW_S": "0.5", "AGENTOPS_SWEEP_S": "0.5"}
    env = {**packaged.environment(folder), **quick}
    site.up(**env)
    password = site.password
    assert password is not None
    registered = "SELECT 1 FROM runs_agent WHERE slug = 'support' AND provider = 'package'"
    eventually(lambda: site.rows(registered), why="the agent is registered")
    with site.signed_in(password) as person:
        page = person.get("/p/demo/runs/new?agent=support", follow_redirects=True)
        form = page.text
        fields = dict(re.findall(r'name="(csrfmiddlewaretoken|token)" value="([^"]+)"', form))
        answer = person.post(
            "/p/demo/runs/new",
            data={"agent": "support", "prompt": "read", **fields},
            headers={"Origin": str(person.base_url).rstrip("/")},
        )
        assert answer.status_code == 302
        packaged.at(folder, "second", within_s=120)
        site.kill()
    (folder / "go").touch()
    site.up(**env)
    eventually(lambda: site.rows(OF_AGENT, "support")[0][0] == "completed", within_s=60, why="the run continues")

    [(_, result, epoch)] = site.rows(OF_AGENT, "support")
    assert (json.loads(result)[0::2], epoch) == (["first", "third"], 2)
    assert packaged.words(folder) == ["first", "second", "second", "third"]
    assert site.end() == 0
