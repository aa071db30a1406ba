"""The outputs of tools as JSON, in the forms that the SDK reads back."""

from __future__ import annotations

import json
from typing import Any

from agents import FunctionTool
from pydantic import BaseModel

#: The output models of the SDK: text, images and files. Their JSON is valid output too.
_MODELS = frozenset({"ToolOutputText", "ToolOutputImage", "ToolOutputFileContent"})


def as_json(tool: FunctionTool, value: Any) -> Any:
    """Return the output of a tool as JSON. Other values than JSON become the text that the model would get."""
    if (adapter := tool._output_type_adapter) is not None:
        return adapter.dump_python(value, mode="json")
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json") if type(value).__name__ in _MODELS else str(value)
    if isinstance(value, (list, tuple)) and any(isinstance(item, BaseModel) for item in value):
        return [as_json(tool, item) for item in value]
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)
    return value
