"""Attacks on the command sandbox: each succeeds without the sandbox and fails inside it.

Then each layer is removed in turn, and the attacks that only this layer stops succeed again.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import pytest

from runs.tools.sandbox import confinement, sandboxed_command
from tests.support.programs.kernel_attacks import ATTACKS
from tests.support.sandbox import Outside, Sh

Spec = dict[str, Any]
Change = Callable[[dict[str, Any], Outside], None]
NEW_UTS, NEW_IPC, NEW_PID, NEW_NET = 0x4000000, 0x8000000, 0x20000000, 0x40000000
#: Outside, the first process belongs to another user.
ONLY_INSIDE = {"memory_of_the_first_process"}


def without_filter(spec: Spec, around: Outside) -> None:
    spec["filter"] = "060000000000ff7f"  # return ALLOW


def without_private_mounts(spec: Spec, around: Outside) -> None:
    spec["mounts"] += [("bind", str(around.place), str(around.place), "write"), ("bind", "/sys", "/sys", "read")]


def without(*namespaces: int) -> Change:
    def change(spec: Spec, around: Outside) -> None:
        spec["namespaces"] &= ~sum(namespaces)
        if NEW_PID in namespaces:
            spec["mounts"] = [
                ("bind", "/proc", "/proc", "read") if each[0] == "proc" else each for each in spec["mounts"]
            ]

    return change


def without_hidden_files(spec: Spec, around: Outside) -> None:
    spec["mounts"] = [each for each in spec["mounts"] if each[2] not in confinement.HIDDEN]


def without_limits(spec: Spec, around: Outside) -> None:
    spec["limits"] = {}


#: Layers that are removed together → attacks that then succeed.
LAYERS: dict[tuple[Change, ...], set[str]] = {
    (without_filter,): {
        "socket_below_the_root",
        "other_families",
        "tracing",
        "memory_of_another_process",
        "namespace_of_a_user",
        "namespace_of_a_user_by_clone",
        "namespace_of_a_user_by_clone3",
        "mount",
        "removed_mount",
        "terminal_input",
        "key_of_the_session",
        "new_key",
        "system_call_of_32_bits",
        "newer_system_call",
        "denied_system_calls",
    },
    (without_private_mounts,): {
        "content_changed_outside",
        "content_truncated_outside",
        "file_made_outside",
        "metadata_read",
        "metadata_mode",
        "metadata_times",
        "metadata_owner",
        "metadata_attributes",
        "content_outside",
        "directory_outside",
        "file_through_a_symbolic_link",
        "system_directories",
    },
    (without_hidden_files,): {"name_of_a_key"},
    (without_filter, without_private_mounts): {"socket_in_a_directory_outside", "socket_of_a_home"},
    (without_filter, without(NEW_NET)): {"abstract_socket", "tcp", "udp"},
    (without(NEW_PID),): {
        "command_line_of_another_process",
        "signal_to_another_process",
        "pidfd_of_another_process",
        "priority_of_another_process",
    },
    (without(NEW_IPC),): {"shared_memory"},
    (without(NEW_UTS),): {"name_of_the_machine"},
    (without_limits,): {"many_processes", "much_memory", "many_files"},
}
#: Text of the launcher and its replacement → attacks that then succeed.
EDITS = {
    ("LIBC.capset(", "(lambda *_: 0)("): {"privileges"},
    ("LIBC.prctl(_DUMPABLE, 0", "LIBC.prctl(_DUMPABLE, 1"): {"memory_of_the_first_process"},
    ('"write": _NO_SUID | _NO_DEV', '"write": 0'): {"device_of_the_machine"},
    ('"read": _READ_ONLY | _NO_SUID | _NO_DEV', '"read": 0'): {"changed_programs"},
}


def outcomes(sh: Sh, around: Outside, *names: str) -> dict[str, str]:
    result = sh(around.command(*names), timeout_s=60)
    assert result.output.endswith("}\n[exit 0]"), result.output
    return json.loads(result.output.removesuffix("[exit 0]"))


def reached(results: dict[str, str]) -> set[str]:
    return {name for name, outcome in results.items() if outcome == "reached"}


def missed(results: dict[str, str], expected: Set[str]) -> dict[str, str]:
    """Return the attacks that should have succeeded but did not, with their results."""
    return {name: results[name] for name in sorted(expected - reached(results))}


def test_every_attack_works_without_the_sandbox(around: Outside) -> None:
    results = around.without_sandbox()
    assert missed(results, ATTACKS.keys() - ONLY_INSIDE - around.pointless) == {}


def test_no_attack_succeeds_in_the_sandbox(sh: Sh, around: Outside) -> None:
    changed_at = os.stat(around.place / "secret.txt").st_ctime_ns

    assert reached(outcomes(sh, around)) == set()

    assert os.stat(around.place / "secret.txt").st_ctime_ns == changed_at
    assert around.victim.poll() is None


def test_each_layer_stops_attacks_that_no_other_layer_stops(
    sh: Sh, around: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    specification = confinement.specification
    changes: tuple[Change, ...]

    def changed(*arguments: Any, **options: Any) -> Spec:
        spec = specification(*arguments, **options)
        for change in changes:
            change(spec, around)
        return spec

    monkeypatch.setattr(confinement, "specification", changed)
    for changes, attacks in LAYERS.items():
        results = outcomes(sh, around, *attacks)
        assert missed(results, attacks - around.pointless) == {}, [each.__name__ for each in changes]


def test_descriptors_and_environment_of_the_worker_are_not_inherited(
    sh: Sh, around: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", "outside")
    names = {"inherited_descriptor", "secrets_of_the_environment"}
    assert reached(outcomes(sh, around, *names)) == set()
    assert sh("ls /proc/$$/fd").output == "0\n1\n2\n[exit 0]"

    def popen(*arguments: Any, pass_fds: list[int], **options: Any) -> subprocess.Popen[bytes]:
        return started(*arguments, pass_fds=[*pass_fds, around.descriptor], **options)

    started = subprocess.Popen
    monkeypatch.setattr(sandboxed_command.subprocess, "Popen", popen)
    monkeypatch.setattr(confinement, "environment", lambda: os.environ | {"PATH": confinement.PATH})
    assert reached(outcomes(sh, around, *names)) == names


def test_each_step_of_the_launcher_is_needed(
    sh: Sh, around: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sandboxed_command.LAUNCHER.read_text()
    copy = tmp_path / "launcher.py"
    monkeypatch.setattr(sandboxed_command, "LAUNCHER", copy)
    for (text, replacement), attacks in EDITS.items():
        assert source.count(text) == 1
        copy.write_text(source.replace(text, replacement))
        results = outcomes(sh, around, *attacks)
        assert missed(results, attacks - around.pointless) == {}, text
