"""Settings of an agent for its child runs: lower limits than the site's, and the effect of a pause on the call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings as site

from runs.statuses import OnChildPause

#: The maximum values of the two settings.
MAX_DEPTH, MAX_CHILDREN = 10, 1000


#: The setting that applies if the model's call does not choose.
ON_CHILD_PAUSE = "on_child_pause"


class InvalidChildLimit(ValueError):
    """The settings of an agent contain an invalid value for its child runs."""


@dataclass(frozen=True)
class ChildLimits:
    """Limits on the runs below a run."""

    #: Levels of runs below the run: 1 allows children, 2 also allows their children.
    depth: int
    #: Number of direct children. A resumed child does not count again.
    children: int
    #: The default for calls that do not choose.
    on_pause: OnChildPause = OnChildPause.RETURN


def child_limits(settings: Mapping[str, Any]) -> ChildLimits:
    """Return the limits from an agent's settings, never above the site's. Raises `InvalidChildLimit`."""
    return ChildLimits(
        depth=_lower(settings, "max_child_depth", site.AGENTOPS_MAX_CHILD_DEPTH, MAX_DEPTH),
        children=_lower(settings, "max_children", site.AGENTOPS_MAX_CHILDREN, MAX_CHILDREN),
        on_pause=_on_pause(settings.get(ON_CHILD_PAUSE)),
    )


def _on_pause(value: Any) -> OnChildPause:
    if value is not None and value not in list(OnChildPause):
        raise InvalidChildLimit(f'settings.{ON_CHILD_PAUSE} must be "return" or "wait", not {str(value)[:64]!r}')
    return OnChildPause(value or OnChildPause.RETURN)


def _lower(settings: Mapping[str, Any], name: str, limit: int, maximum: int) -> int:
    value = settings.get(name)
    if value is None:
        return limit
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
        raise InvalidChildLimit(f"settings.{name} must be a whole number from 0 to {maximum}, not {str(value)[:64]!r}")
    return min(value, limit)
