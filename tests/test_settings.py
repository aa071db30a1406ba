"""Invalid settings prevent the start: the error names the variable and never shows its value."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

from agentops.base.env import BadSetting
from agentops.checks import mail_password_is_not_in_the_clear

BAD = [
    *[("AGENTOPS_MAX_TOTAL_STEPS", value) for value in ("-1", "0", "abc", "1_000", "1.5", " 12 ", "１２", "9" * 40)],
    *[("SECRET_KEY", value) for value in ("changeme", "x" * 60)],
    *[("DATABASE_URL", value) for value in ("garbage", "mysql://u:swordfish@h/d")],
    ("ALLOWED_HOSTS", "*"),
    ("REDIS_URL", "http://swordfish"),
    ("AGENTOPS_LEASE_S", "never"),
    *[
        ("AGENTOPS_TOOL_ROOTS", value)
        for value in (
            "relative",
            "/no/such/directory",
            "/etc/passwd",
            "/proc/self",
            "/usr/../proc/self",
            "/usr,/sys/kernel",
        )
    ],
    ("AGENTOPS_MAX_TOTAL_STEP", "500"),
    ("AGENTOPS_CHAOS", "turn.committed:1"),
    ("PORT", "65536"),
    ("LOG_LEVEL", "verbose"),
    *[(f"AGENTOPS_RATE_{name}", value) for name, value in (("KEY", "-1"), ("USER", "1e3"), ("ADDRESS", "1/s"))],
    *[
        ("EMAIL_URL", value)
        for value in ("localhost:25", "http://h", "smtp://:25", "smtp://u:swordfish@h/p", "smtp://h:x")
    ],
    *[("DEFAULT_FROM_EMAIL", value) for value in ("nobody", "a@b.test\nBcc: c@d.test", "swordfish@")],
    *[("AGENTOPS_BASE_URL", value) for value in ("ops.test", "ftp://h", "https://h/p", "https://u:swordfish@h")],
    *[
        ("AGENTOPS_OIDC_ISSUER", value)
        for value in (
            "ops.test",
            "http://ops.test",
            "https://u:swordfish@h",
            "https://h/?q=1",
            "https://h/" + "x" * 200,
        )
    ],
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=range(len(BAD)))
def test_a_bad_one_is_named(name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadSetting) as refusal:
        read_with(monkeypatch, tmp_path, **{name: value})

    assert name in str(refusal.value)
    assert len(value) < 4 or value == "*" or value not in str(refusal.value)
    assert "swordfish" not in str(refusal.value)


MAIL = {"EMAIL_URL": "smtp+tls://robot:p%40ss@mail.test", "DEFAULT_FROM_EMAIL": "agentops <robot@ops.test>"}
SITE = {"AGENTOPS_BASE_URL": "https://ops.test/"}


def read_with(monkeypatch: pytest.MonkeyPatch, home: Path, **variables: str) -> dict[str, object]:
    for each in [each for each in os.environ if each.startswith("AGENTOPS_")]:
        monkeypatch.delenv(each)
    for name, value in {"AGENTOPS_HOME": str(home), **variables}.items():
        monkeypatch.setenv(name, value)
    return runpy.run_path(str(settings.BASE_DIR / "agentops" / "settings.py"))


def test_tool_roots_must_not_overlap_with_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, roots = tmp_path / "home", [tmp_path / "one", tmp_path / "two"]
    for each in (*roots, home / "inside"):
        each.mkdir(parents=True)
    (tmp_path / "link").symlink_to(home / "inside")

    found = read_with(monkeypatch, home, AGENTOPS_TOOL_ROOTS=f"{roots[0]}, {roots[1]}")

    assert found["AGENTOPS_TOOL_ROOTS"] == list(map(str, roots))
    assert read_with(monkeypatch, home)["AGENTOPS_TOOL_ROOTS"] == []
    for bad in (home, home / "inside", tmp_path / "link"):
        with pytest.raises(BadSetting, match="AGENTOPS_TOOL_ROOTS must not name AGENTOPS_HOME"):
            read_with(monkeypatch, home, AGENTOPS_TOOL_ROOTS=str(bad))


def test_a_url_configures_the_mail_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_with(monkeypatch, tmp_path, **MAIL, **SITE)

    assert (found["AGENTOPS_EMAIL"], found["AGENTOPS_BASE_URL"]) == (True, "https://ops.test")
    assert (found["EMAIL_HOST"], found["EMAIL_PORT"], found["EMAIL_USE_TLS"]) == ("mail.test", 587, True)
    assert (found["EMAIL_HOST_USER"], found["EMAIL_HOST_PASSWORD"]) == ("robot", "p@ss")


def test_mail_is_off_without_a_mail_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_with(monkeypatch, tmp_path)["AGENTOPS_EMAIL"] is False


@pytest.mark.parametrize(
    ("host", "tls", "doubts"),
    [("mail.test", False, ["agentops.W003"]), ("mail.test", True, []), ("127.0.0.1", False, [])],
    ids=["in the clear", "encrypted", "on this machine"],
)
def test_a_mail_password_over_an_unencrypted_connection_is_warned_about(
    host: str, tls: bool, doubts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "EMAIL_HOST", host)
    monkeypatch.setattr(settings, "EMAIL_USE_TLS", tls)
    monkeypatch.setattr(settings, "EMAIL_HOST_PASSWORD", "swordfish")

    assert [doubt.id for doubt in mail_password_is_not_in_the_clear(None)] == doubts


@pytest.mark.parametrize("missing", ["DEFAULT_FROM_EMAIL", "AGENTOPS_BASE_URL"])
def test_mail_requires_a_sender_and_a_base_url(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {name: value for name, value in (MAIL | SITE).items() if name != missing}

    with pytest.raises(BadSetting, match=missing):
        read_with(monkeypatch, tmp_path, **given)


OPENID = {"AGENTOPS_OIDC_ISSUER": "https://login.ops.test/realms/team/"}
OPENID |= {"AGENTOPS_OIDC_CLIENT_ID": "ops", "AGENTOPS_OIDC_CLIENT_SECRET": "swordfish"}


@pytest.mark.parametrize("missing", ["AGENTOPS_OIDC_CLIENT_ID", "AGENTOPS_OIDC_CLIENT_SECRET"])
def test_an_openid_provider_requires_a_client(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {name: value for name, value in OPENID.items() if name != missing}

    with pytest.raises(BadSetting, match=missing):
        read_with(monkeypatch, tmp_path, **given)


def test_second_factors_and_openid_have_urls_where_they_are_switched_on(tmp_path: Path) -> None:
    code = (
        "import django; django.setup(); from django.conf import settings; from django.urls import reverse;"
        " issuer = settings.AGENTOPS_OIDC_ISSUER; print(issuer, reverse('mfa_authenticate'),"
        " reverse('openid_connect_callback', kwargs={'provider_id': issuer}))"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("AGENTOPS_")}
    env |= {"AGENTOPS_HOME": str(tmp_path), "AGENTOPS_SECOND_FACTOR": "true", **OPENID}

    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=settings.BASE_DIR, capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == [
        "https://login.ops.test/realms/team",
        "/login/second-factor",
        "/login/openid/callback",
    ]


def test_an_invalid_setting_exits_with_78(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("AGENTOPS_")}
    env |= {"AGENTOPS_HOME": str(tmp_path), "AGENTOPS_MAX_TOTAL_STEPS": "-1"}
    words = [sys.executable, "-c", "from agentops.cli import main; main()", "check"]
    done = subprocess.run(
        words, env=env, cwd=settings.BASE_DIR, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 78
    assert done.stderr.startswith("agentops: invalid setting: AGENTOPS_MAX_TOTAL_STEPS")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
