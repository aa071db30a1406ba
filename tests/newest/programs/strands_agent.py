"""An agent of Strands with its own spans: strands_agent.py claude|gpt [latest], by default in their older form."""
# /// script
# dependencies = ["strands-agents[anthropic,openai,otel]", "opentelemetry-exporter-otlp-proto-http"]
# ///

from __future__ import annotations

import os
import sys

if "latest" in sys.argv:
    os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"

import task
from strands import Agent, tool
from strands.models.anthropic import AnthropicModel
from strands.models.openai import OpenAIModel

provider = task.tracer_provider()
model = (
    AnthropicModel(model_id=task.CLAUDE, max_tokens=500) if sys.argv[1] == "claude" else OpenAIModel(model_id=task.GPT)
)
tools = [tool(function) for function in task.TOOLS.values()]
agent = Agent(model=model, tools=tools, system_prompt=task.SYSTEM, name="weather", callback_handler=None)
print(agent(task.PROMPT))
provider.shutdown()
