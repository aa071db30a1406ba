"""Langfuse with its drop-in for OpenAI: langfuse_traced.py gpt|responses."""
# /// script
# dependencies = ["langfuse", "openai"]
# ///

from __future__ import annotations

import sys
from typing import Any

import task
from langfuse import get_client
from langfuse.openai import openai

langfuse = get_client()
client = openai.OpenAI(max_retries=0)


def tool_span(name: str, call_id: str, arguments: dict[str, Any]) -> Any:
    output = task.TOOLS[name](**arguments)
    return langfuse.start_as_current_observation(name=name, as_type="tool", input=arguments, output=output)


with langfuse.start_as_current_observation(name="weather", as_type="agent", input=task.PROMPT) as root:
    answer = task.ASK[sys.argv[1]](tool_span, client)
    root.update(output=answer)
print(answer)
langfuse.flush()
langfuse.shutdown()
