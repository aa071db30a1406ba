"""Third-party packages as they look when installed: a module, and the metadata of its distribution."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, source: str, groups: Mapping[str, Mapping[str, str]]
) -> None:
    """Put a module of version 1.0 on the path, with entry points: group (after `agentops.`) → name → value."""
    (folder / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = [f"[agentops.{group}]\n" + "".join(f"{n} = {v}\n" for n, v in e.items()) for group, e in groups.items()]
    (metadata / "entry_points.txt").write_text("".join(lines))
    monkeypatch.syspath_prepend(folder)
