"""requirements.local: packages of a user, which upgrades keep. The real Makefile, uv and git, without a network."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.deployment.checkout import Checkout, make_wheel
from tests.support.paths import ROOT

STAMP = ".venv/.stamp-run"
#: A package that is being developed. By dev-mode-dirs, hatchling needs nothing more to install it as editable.
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
    """A user's clone, with a package of the user's own beside it and one from an index."""
    directory = tmp_path_factory.mktemp("user")
    checkout = Checkout.make(directory)
    shutil.copytree(ROOT / "examples" / "shop_extension", directory / "shop_extension")
    (directory / "own_tools").mkdir()
    (directory / "own_tools" / "pyproject.toml").write_text(OWN_TOOLS)
    (directory / "own_tools" / "own_tools.py").write_text("")
    make_wheel(checkout.wheels, "vendor_client", "3.1", requires="steady>=1")
    make_wheel(checkout.wheels, "vendor_client", "4.0", requires="steady>=9")
    checkout.require(*OWN)
    return checkout


def commands_of(checkout: Checkout) -> set[str]:
    return {path.name for path in checkout.program("python").parent.iterdir()}


def test_an_upgrade_keeps_what_the_user_has_installed(checkout: Checkout) -> None:
    first = checkout.make_target("install")
    assert first.returncode == 0, first.stderr
    # The newest vendor_client needs another steady than the lock file names.
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
    # Nothing is left to do.
    assert checkout.make_target("install").stdout == "make: Nothing to be done for 'install'.\n"


def test_what_cannot_be_installed_leaves_the_environment_as_it_was(checkout: Checkout, tmp_path: Path) -> None:
    good = (checkout.directory / "requirements.local").read_text()
    assert checkout.make_target("install").returncode == 0
    before = checkout.installed(), commands_of(checkout)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "missing"\n')

    for line, reason in {
        "steady==1.0": "you require steady==1.0",
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


def test_the_lock_file_is_checked_by_its_hashes_beside_the_user_s_packages(checkout: Checkout) -> None:
    lock = checkout.directory / "requirements.lock"
    good = lock.read_text()
    assert checkout.make_target("install").returncode == 0
    (checkout.directory / STAMP).unlink()
    lock.write_text(good.replace("sha256:", "sha256:0000")[: -len("0000\n")] + "\n")
    shutil.rmtree(checkout.directory.parent / "cache")
    # What is installed is not read again.
    assert checkout.run("uv", "pip", "uninstall", "--quiet", "steady") == ""
    try:
        refused = checkout.make_target("install")
    finally:
        lock.write_text(good)

    assert refused.returncode != 0
    assert "Hash mismatch" in refused.stderr
    assert checkout.make_target("install").returncode == 0


def test_without_the_file_its_packages_are_removed(checkout: Checkout) -> None:
    assert checkout.make_target("install").returncode == 0
    before = checkout.installed()
    file, aside = checkout.directory / "requirements.local", checkout.directory / "aside"
    file.rename(aside)
    assert checkout.make_target("install").returncode == 0
    assert checkout.installed() == {"steady": before["steady"]}

    # Put back, it is older than the environment.
    aside.rename(file)
    assert checkout.make_target("install").returncode == 0
    assert checkout.installed() == before == {**USER, "steady": before["steady"]}
