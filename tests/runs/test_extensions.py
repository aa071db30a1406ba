"""Providers, hooks and importers of packages and modules: loaded, listed, and unable to break the site."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command

from runs.external.importers import formats
from runs.providers import base as providers
from tests.support import engine
from tests.support.engine import added_parts

Install = Callable[..., None]
PROVIDERS = """
    from agentops.providers import StreamingProvider

    class Echo(StreamingProvider):
        '''Says it again.

        And no more.
        '''
        name = "echo"
        def context_window(self, model): return 1000

    class Half:
        name = "half"
        def check(self, model, settings): ...
"""
IMPORTERS = """
    class Parrot:
        name = "parrot"
        title = "chats of Parrot"
        def detect(self, file): return False
        def read(self, file): return iter(())
"""
HOOKS = """
    from agentops.hooks import Hook

    class Slow(Hook):
        '''Counts to ten.'''
        name = "slow"
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    def install(module: str, source: str, **groups: dict[str, str]) -> None:
        engine.install_package(tmp_path, monkeypatch, module, source, groups)

    with added_parts():
        yield install


def listed(*arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    with suppress(CommandError):  # the output also lists faulty extensions
        call_command("extensions", "--json", *arguments, stdout=out)
    answer: dict[str, Any] = json.loads(out.getvalue())
    return answer


def test_a_provider_comes_from_an_entry_point(install: Install) -> None:
    entries = {"mirror": "own_echo:Echo", "half": "own_echo:Half", "gone": "own_echo:Gone", "llm": "own_echo:Echo"}
    install("own_echo", PROVIDERS, providers=entries)

    assert providers.get("mirror").context_window("any") == 1000
    assert providers.get("mirror") is providers.get("mirror")
    with pytest.raises(providers.ProviderUnusable, match=r"half = own_echo:Half .*: Half lacks open, context_window"):
        providers.get("half")
    with pytest.raises(providers.ProviderUnusable, match=r"gone = own_echo:Gone .*: cannot be loaded: AttributeError"):
        providers.get("gone")
    with pytest.raises(
        providers.ProviderUnusable,
        match=r"use one of: .*fixture, llm, mirror.*; extensions that cannot be used: 3, see `agentops extensions`",
    ):
        providers.get("other")
    faults = [str(fault) for fault in providers.PROVIDERS.faults()]
    assert any("llm = own_echo:Echo of own_echo 1.0: the provider 'llm' exists already" in fault for fault in faults)
    assert len([each for each in run_checks() if each.id == "agentops.W007"]) == 3


def test_settings_name_modules(install: Install, settings: Any) -> None:
    install("own_models", PROVIDERS)
    (own := install)("own_formats", IMPORTERS)
    own("own_guards", HOOKS)
    settings.AGENTOPS_PROVIDER_MODULES = ["own_models"]
    settings.AGENTOPS_IMPORTER_MODULES = ["own_formats"]
    settings.AGENTOPS_HOOK_MODULES = ["own_guards"]

    assert providers.get("echo").context_window("any") == 1000
    assert formats.importers()[0].name == "parrot"
    found = listed()
    assert found["faults"] == []
    assert [(each["kind"], each["name"], each["source"], each["description"]) for each in found["extensions"]] == [
        ("provider", "echo", "module 'own_models' of AGENTOPS_PROVIDER_MODULES", "Says it again."),
        ("hook", "slow", "module 'own_guards' of AGENTOPS_HOOK_MODULES", "Counts to ten."),
        ("importer", "parrot", "module 'own_formats' of AGENTOPS_IMPORTER_MODULES", "chats of Parrot"),
    ]
    everything = {(each["kind"], each["name"]) for each in listed("--all")["extensions"]}
    assert {("tool", "read_file"), ("provider", "llm"), ("hook", "path_guard"), ("importer", "codex")} <= everything


def test_faulty_extensions_are_listed_and_skipped(
    install: Install, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    half = "class Half:\n    name = 'half'\n"
    install("own_parts", half, importers={"half": "own_parts:Half", "none": "nowhere"}, sinks={"acme": "own_parts"})
    settings.AGENTOPS_PROVIDER_MODULES = ["own_parts", "no_such_module"]
    settings.AGENTOPS_IMPORTER_MODULES = ["own_parts"]

    assert tuple(formats.importers()) == formats.BUILTIN
    with pytest.raises(CommandError, match="extensions that cannot be used") as ended:
        call_command("extensions", stdout=io.StringIO())
    assert ended.value.returncode == 1
    faults = [f"{fault['source']}: {fault['reason']}" for fault in listed()["faults"]]
    assert faults == [
        "module 'own_parts' of AGENTOPS_PROVIDER_MODULES: contains no class of a provider with a name",
        "module 'no_such_module' of AGENTOPS_PROVIDER_MODULES: cannot be loaded: ModuleNotFoundError: No module named "
        "'no_such_module'",
        "entry point agentops.importers: half = own_parts:Half of own_parts 1.0: Half lacks title, detect, read",
        "entry point agentops.importers: none = nowhere of own_parts 1.0: cannot be loaded: ModuleNotFoundError: No "
        "module named 'nowhere'",
        "module 'own_parts' of AGENTOPS_IMPORTER_MODULES: contains no class with name, title, detect, read",
        "entry point agentops.sinks: acme = own_parts of own_parts 1.0: contains no subclass of SinkKind with a name",
    ]
    assert faults[0] in caplog.text
    assert len([each for each in run_checks() if each.id == "agentops.W007"]) == 6
