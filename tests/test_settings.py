"""Settings that cannot be used stop the start (BI-111): the variable is named, its value never shown."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

from agentops.env import BadSetting

BAD = [
    *[("AGENTOPS_MAX_TOTAL_STEPS", value) for value in ("-1", "0", "abc", "1_000", "1.5", " 12 ", "１２", "9" * 40)],
    *[("SECRET_KEY", value) for value in ("changeme", "x" * 60)],
    *[("DATABASE_URL", value) for value in ("garbage", "mysql://u:swordfish@h/d")],
    ("ALLOWED_HOSTS", "*"),
    ("REDIS_URL", "http://swordfish"),
    ("AGENTOPS_LEASE_S", "never"),
    ("AGENTOPS_MAX_TOTAL_STEP", "500"),
    ("AGENTOPS_CHAOS", "CP12:1"),
    ("PORT", "65536"),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=range(len(BAD)))
def test_a_bad_one_is_named(name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in [each for each in os.environ if each.startswith("AGENTOPS_")]:
        monkeypatch.delenv(each)
    monkeypatch.setenv("AGENTOPS_HOME", str(tmp_path))
    monkeypatch.setenv(name, value)

    with pytest.raises(BadSetting) as refusal:
        runpy.run_path(str(settings.BASE_DIR / "agentops" / "settings.py"))

    assert name in str(refusal.value)
    assert len(value) < 4 or value == "*" or value not in str(refusal.value)
    assert "swordfish" not in str(refusal.value)


def test_the_start_ends_with_78(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("AGENTOPS_")}
    env |= {"AGENTOPS_HOME": str(tmp_path), "AGENTOPS_MAX_TOTAL_STEPS": "-1"}
    words = [sys.executable, "-c", "from agentops.cli import main; main()", "check"]
    done = subprocess.run(
        words, env=env, cwd=settings.BASE_DIR, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 78
    assert done.stderr.startswith("agentops: bad settings: AGENTOPS_MAX_TOTAL_STEPS")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
