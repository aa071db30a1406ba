"""The JSON Schema of a flow's definition."""

from __future__ import annotations

from functools import cache
from typing import Any

from runs.flows.definition.shapes import FlowDefinition


@cache
def flow_schema() -> dict[str, Any]:
    """Return the JSON Schema of a definition. It does not cover relations between parts: see `examine`."""
    schema = FlowDefinition.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Flow"}
