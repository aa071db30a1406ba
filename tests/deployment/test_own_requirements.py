"""requirements.local: a user's packages, which upgrades keep. Uses the real Makefile, uv and git, without a network."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.deployment import Checkout, make_wheel
from tests.support.machine import ROOT

STAMP = ".venv/.stamp-run"
#: A package under development. With dev-mode-dirs, hatchling needs no other package to install it as editable.
OWN_TOOLS = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "own-tools"
version = "0.1"
dependencies = ["vendor_client", "agentops<99"]
[tool.hatch.build]
dev-mode-dirs = ["."]
include = ["own_tools.py"]
"""
USER = {"vendor-client": "3.1", "shop-extension": "1.0"}
OWN = ("--editable ../own_tools", "../shop_extension")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Return a user's clone, with a package in a local directory and a package from an index."""
    directory = tmp_path_factory.mktemp("user")
    checkout = Checkout.make(directory)
    shutil.copytree(ROOT / "examples" / "shop_extension", directory / "shop_extension")
    (directory / "own_tools").mkdir()
    (directory / "own_tools" / "pyproject.toml").write_text(OWN_TOOLS)
    (directory / "own_tools" / "own_tools.py").write_text("")
    # No lock file of these tests pins it.
    make_wheel(checkout.wheels, "steady", "0.9")
    make_wheel(checkout.wheels, "vendor_client", "3.1", requires="steady>=1")
    make_wheel(checkout.wheels, "vendor_client", "4.0", requires="steady>=9")
    checkout.require(*OWN)
    return checkout


def commands_of(checkout: Checkout) -> set[str]:
    return {path.name for path in checkout.program("python").parent.iterdir()}


def test_upgrade_keeps_the_packages_of_the_user(checkout: Checkout) -> None:
    first = checkout.make_target("install")
    assert first.returncode == 0, first.stderr
    # The newest vendor_client requires another version of steady than the lock file.
    assert checkout.installed() == {**USER, "steady": "1.0"}
    assert "agentops" in commands_of(checkout)

    make_wheel(checkout.wheels, "by_hand", "1.5")
    checkout.run("uv", "pip", "install", "--quiet", "by_hand")
    checkout.release("2.0")
    checkout.pull()
    second = checkout.make_target("install")

    assert second.returncode == 0, second.stderr
    assert second.stderr == "Removed by-hand==1.5: to keep it, add it to requirements.local\n"
    assert checkout.installed() == {**USER, "steady": "2.0"}
    assert "shop_rules" in checkout.run("agentops", "extensions")
    assert (
        checkout.run("python", "-c", "import own_tools; print(own_tools.__file__)")
        == f"{checkout.directory.parent / 'own_tools' / 'own_tools.py'}\n"
    )
    # Everything is up to date.
    assert checkout.make_target("install").stdout == "make: Nothing to be done for 'install'.\n"


def test_failed_installation_leaves_the_environment_unchanged(checkout: Checkout, tmp_path: Path) -> None:
    good = (checkout.directory / "requirements.local").read_text()
    assert checkout.make_target("install").returncode == 0
    before = checkout.installed(), commands_of(checkout)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "missing"\n')

    for line, reason in {
        "steady==0.9": "you require steady==0.9",
        "vendor_client>=4": "steady>=9",
        "absent_package": "absent-package was not found",
        str(broken): "missing",
        "../nowhere": "nowhere",
        "no requirement": "Expected",
    }.items():
        checkout.require(*OWN, line)
        refused = checkout.make_target("install")
        assert refused.returncode != 0, line
        assert reason in refused.stderr, refused.stderr
        assert (
            "requirements.local cannot be installed beside requirements.lock, for the reason above." in refused.stderr
        )
        assert "Nothing was changed." in refused.stderr
        assert (checkout.installed(), commands_of(checkout)) == before, line

    (checkout.directory / "requirements.local").write_text(good)
    assert checkout.make_target("install").returncode == 0
    assert (checkout.installed(), commands_of(checkout)) == before


def test_lock_file_hashes_are_checked_with_user_packages(checkout: Checkout) -> None:
    lock = checkout.directory / "requirements.lock"
    good = lock.read_text()
    assert checkout.make_target("install").returncode == 0
    (checkout.directory / STAMP).unlink()
    lock.write_text(good.replace("sha256:", "sha256:0000")[: -len("0000\n")] + "\n")
    shutil.rmtree(checkout.directory.parent / "cache")
    # Uninstall it, because uv does not download installed packages again.
    assert checkout.run("uv", "pip", "uninstall", "--quiet", "steady") == ""
    try:
        refused = checkout.make_target("install")
    finally:
        lock.write_text(good)

    assert refused.returncode != 0
    assert "Hash mismatch" in refused.stderr
    assert checkout.make_target("install").returncode == 0


def test_removing_the_file_removes_its_packages(checkout: Checkout) -> None:
    assert checkout.make_target("install").returncode == 0
    before = checkout.installed()
    file, aside = checkout.directory / "requirements.local", checkout.directory / "aside"
    file.rename(aside)
    assert checkout.make_target("install").returncode == 0
    assert checkout.installed() == {"steady": before["steady"]}

    # The restored file is older than the environment.
    aside.rename(file)
    assert checkout.make_target("install").returncode == 0
    assert checkout.installed() == before == {**USER, "steady": before["steady"]}
