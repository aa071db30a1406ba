"""The tools of this site: the built-in ones, and the toolset that plays recordings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.module_loading import import_string

from runs.tools.base import Toolset
from runs.tools.builtin import BUILTIN
from runs.tools.registry import RECORDED, Registry
from runs.tools.speaking import SPEAKING


def _recorded(settings: Mapping[str, Any]) -> Toolset:
    """Recordings are a part of their own, named here by a string so that tools do not import them."""
    toolset: Toolset = import_string("runs.fixtures.toolset.for_agent")(settings)
    return toolset


TOOLS = Registry([*BUILTIN, *SPEAKING])
TOOLS.register_toolset(RECORDED, _recorded)
