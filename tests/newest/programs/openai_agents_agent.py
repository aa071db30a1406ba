"""Two agents of the OpenAI Agents SDK, traced by OpenInference: openai_agents_agent.py chat|responses."""
# /// script
# dependencies = [
#     "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "openai-agents",
#     "openinference-instrumentation-openai-agents",
# ]
# ///

from __future__ import annotations

import sys

import task
from agents import Agent, Runner, function_tool, set_default_openai_api
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor

provider = task.tracer_provider()
OpenAIAgentsInstrumentor().instrument(tracer_provider=provider)
set_default_openai_api("chat_completions" if sys.argv[1] == "chat" else "responses")
tools = [function_tool(tool) for tool in task.TOOLS.values()]
weather = Agent(name="weather", instructions=task.SYSTEM, tools=tools, model=task.GPT)
desk = Agent(name="desk", instructions=task.SYSTEM, handoffs=[weather], model=task.GPT)
print(Runner.run_sync(desk, task.PROMPT).final_output)
provider.shutdown()
