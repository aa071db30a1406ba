"""Hooks of packages and modules: the example of the guide, and errors of invalid hooks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from agentops.checks import hooks_can_be_loaded
from runs.hooks import hook_catalogue
from runs.hooks.base import HookContext, HookEvent, InvalidHook, Verdict
from tests.support.engine import added_parts
from tests.support.machine import ROOT

GUIDE = (ROOT / "docs/guides/hooks.md").read_text(encoding="utf-8")


def last_block(language: str) -> str:
    return str(re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)[-1])


@pytest.fixture(autouse=True)
def found_again() -> Iterator[None]:
    with added_parts():
        yield


def install(folder: Path, entries: str) -> None:
    metadata = folder / "order_hooks-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: order-hooks\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entries)


def test_the_example_of_the_guide_is_a_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [(group, entries)] = tomllib.loads(last_block("toml"))["project"]["entry-points"].items()
    [(name, target)] = entries.items()
    (tmp_path / "order_hooks.py").write_text(last_block("python"), encoding="utf-8")
    install(tmp_path, f"[{group}]\n{name} = {target}\n")
    monkeypatch.syspath_prepend(tmp_path)
    hook = hook_catalogue.make("order_limit", {"limit": 10})

    def verdict(total: int) -> Verdict | None:
        context = HookContext(
            event=HookEvent.PRE_TOOL_USE, run_id="r", agent_id="a", step=1, arguments={"total": total}
        )
        return hook.decide(context)

    assert (hook.guard, verdict(5)) == (True, None)
    assert verdict(50) == Verdict.ask("a large order")
    assert verdict(500) == Verdict.deny("an order of 500 is not for an agent")


def test_unusable_hooks_are_omitted_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    """A package that fails does not affect others, and a package cannot replace a built-in guard."""
    (tmp_path / "bad_hooks.py").write_text(
        "from agentops.hooks import Hook\nclass Fake(Hook):\n    name = 'path_guard'\nnothing = 1\n"
    )
    install(tmp_path, "[agentops.hooks]\na = bad_hooks:Fake\nb = bad_hooks:nothing\nc = no_such_module:x\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings.AGENTOPS_HOOK_MODULES = ["no.such.module"]
    settings.AGENTOPS_HOOKS = ["path_guard", "gone_guard"]

    *faults, unknown = [message.msg for message in hooks_can_be_loaded(None)]

    assert [re.search(r"exists already|no subclass|cannot be loaded", fault) is not None for fault in faults] == [
        True
    ] * 4
    assert unknown == "AGENTOPS_HOOKS names 'gone_guard', which is no hook."
    assert hook_catalogue.make("path_guard", {}).guard
    with pytest.raises(InvalidHook, match="unknown hook 'gone_guard'"):
        hook_catalogue.make("gone_guard", {})
