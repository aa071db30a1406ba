"""The tiers of model calls, which change the price: fast mode, batches, service tiers, and the region of inference.

A tier is a word, or several words in alphabetical order joined by `+`. The tier with the standard price is empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Maximum characters of a tier.
MAX_TIER = 40
US_ONLY = "us-only"
#: Names of the standard tier. "auto" is from the request, and does not say which tier was used.
_STANDARD = frozenset(
    {"", "standard", "normal", "default", "auto", "on_demand", "standard_only", "not_available", "global"}
)
#: The fields of an answer or its usage that contain the tier.
FIELDS = ("speed", "service_tier", "processing", "inference_geo", "traffic_type")


def tier_of(details: Mapping[str, Any]) -> str:
    """Return the tier that the `FIELDS` of an answer or its usage name."""
    values = {name: value for name in FIELDS if isinstance(value := details.get(name), str)}
    words = {word for name, value in values.items() for word in _words(name, value).split("+")}
    return "+".join(sorted(words - {""}))[:MAX_TIER]


def details_of(usage: Mapping[str, Any]) -> dict[str, str]:
    """Return the `FIELDS` of a usage that name a tier other than the standard one, as the details of an answer."""
    return {
        name: value[:MAX_TIER]
        for name in FIELDS
        if isinstance(value := usage.get(name) or usage.get(_camel(name)), str) and _words(name, value)
    }


def _words(field: str, value: str) -> str:
    """Return the words of a tier that a field names, joined by `+`; empty for the standard tier."""
    # Google's traffic types are "ON_DEMAND", "ON_DEMAND_FLEX" and so on.
    text = re.sub(r"[^a-z0-9_.+-]", "", value.strip().lower()).removeprefix("on_demand_")
    if text in _STANDARD:
        return ""
    return f"{text}-only" if field == "inference_geo" else text


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
