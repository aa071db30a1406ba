"""Names that the form of an agent suggests: providers and models."""

from __future__ import annotations

from functools import cache
from typing import get_args

from pydantic_ai.models import KnownModelName

from agentops.projects.models import Project
from runs.fixtures import library
from runs.models import Agent
from timeline.display import clean

#: The vendors whose libraries are extras of agentops.
VENDORS = ("anthropic", "openai", "openai-chat", "openai-responses")
MAX_OWN = 100


def suggestions(project: Project) -> list[str]:
    """Return the models of the project's agents, models that pydantic-ai knows, and recordings."""
    own = Agent.objects.filter(project=project).values_list("model", flat=True).distinct().order_by("model")[:MAX_OWN]
    return list(dict.fromkeys([*map(clean, own), *_known(), *library.names()]))


@cache
def _known() -> list[str]:
    return [name for name in get_args(KnownModelName.__value__) if name.partition(":")[0] in VENDORS]
