"""The tiers of model calls, which change the price: fast mode, batches, service tiers, and the region of inference.

A tier is a word, or several words joined by `+` in alphabetical order. Empty: the standard price applies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Maximum characters of a tier.
MAX_TIER = 40
US_ONLY = "us-only"
#: The providers' names of the standard tier. "auto" is a request value, and does not say which tier was used.
_STANDARD = frozenset(
    {"", "standard", "normal", "default", "auto", "on_demand", "standard_only", "not_available", "global"}
)
#: The fields of an answer or its usage that contain the tier.
FIELDS = ("speed", "service_tier", "processing", "inference_geo", "traffic_type")


def tier_of(details: Mapping[str, Any]) -> str:
    """Return the tier in the `FIELDS` of an answer or its usage, as named by the provider."""
    words = {
        word for name in FIELDS if isinstance(value := details.get(name), str) for word in _word(name, value).split("+")
    }
    return "+".join(sorted(words - {""}))[:MAX_TIER]


def details_of(usage: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a usage that contain the tier, as the details of an answer; empty for the standard tier."""
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
