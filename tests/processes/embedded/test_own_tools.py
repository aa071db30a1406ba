"""The example of docs/guides/tools.md: a package of tools beside agentops, installed, listed and called by a run."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.deployment.embedded_site import Site
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "shop_tools"
UV = Path(sys.executable).with_name("uv")


@pytest.fixture
def shop_python(tmp_path: Path) -> Path:
    """The Python of an environment with agentops, and with the example installed into it."""
    env = tmp_path / "env"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, env], check=True)
    python = env / "bin" / "python"
    packages = next((env / "lib").glob("python*/site-packages"))
    (packages / "suite.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
    install = [UV, "pip", "install", "--quiet", "--python", python, "--no-deps", "--no-build-isolation", EXAMPLE]
    subprocess.run(install, check=True, capture_output=True, env={"VIRTUAL_ENV": str(env)})
    return python


def test_an_installed_package_adds_tools(site: Site, shop_python: Path) -> None:
    recordings = f"AGENTOPS_FIXTURES={EXAMPLE / 'recordings'}"
    site.command = ["env", recordings, str(shop_python), str(ROOT / "manage.py")]

    listed = {each["name"]: each for each in json.loads(site.agentops("tools", "--json"))}

    assert {"http_fetch", "order_status", "refund"} <= set(listed)
    assert listed["refund"]["source"] == "entry point agentops.tools: shop = shop_tools of shop-tools 1.0"
    facts = {name: listed["refund"][name] for name in ("effect", "timeout_s", "needs_approval")}
    assert facts == {"effect": "idempotent", "timeout_s": 10, "needs_approval": True}
    assert set(listed["refund"]["parameters"]["properties"]) == {"order", "cents"}

    site.up()
    site.agentops("agent", "apply", str(EXAMPLE / "agent.toml"), "--project", "demo")
    site.agentops("agent", "run", "clerk", "--project", "demo", "--prompt", "Where is A-17?", "--wait", "60")
    [(status, output)] = site.rows("SELECT status, output FROM agent_run_tool_calls WHERE tool_name = 'order_status'")
    assert (status, json.loads(json.loads(output))) == ("completed", {"status": "shipped", "total": 2500})
