"""The tiers of model calls, which change the price: fast mode, batches, service tiers, and the place of inference.

A tier is a word, or several with `+` between them, in the order of the alphabet. Empty: the standard price counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Characters of a tier.
MAX_TIER = 40
US_ONLY = "us-only"
#: What providers call the standard tier. "auto" is what a request asks for, and does not say which tier it got.
_STANDARD = frozenset(
    {"", "standard", "normal", "default", "auto", "on_demand", "standard_only", "not_available", "global"}
)
#: The fields of an answer or its usage that say what the tier is.
FIELDS = ("speed", "service_tier", "processing", "inference_geo", "traffic_type")


def tier_of(details: Mapping[str, Any]) -> str:
    """Return the tier that an answer or its usage states by `FIELDS`, as providers name them."""
    words = {
        word for name in FIELDS if isinstance(value := details.get(name), str) for word in _word(name, value).split("+")
    }
    return "+".join(sorted(words - {""}))[:MAX_TIER]


def details_of(usage: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a usage that say what the tier is, as the details of an answer; none of the standard one."""
    return {
        name: value[:MAX_TIER]
        for name in FIELDS
        if isinstance(value := usage.get(name) or usage.get(_camel(name)), str) and _word(name, value)
    }


def _word(field: str, value: str) -> str:
    # Google's traffic types are "ON_DEMAND", "ON_DEMAND_FLEX" and so on.
    text = re.sub(r"[^a-z0-9_.+-]", "", value.strip().lower()).removeprefix("on_demand_")
    if text in _STANDARD:
        return ""
    if field == "inference_geo":
        return f"{text}-only"
    return text


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
