"""An agent of pydantic-ai with its own spans: pydantic_ai_agent.py MODEL."""
# /// script
# dependencies = ["opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "pydantic-ai-slim[anthropic,openai]"]
# ///

from __future__ import annotations

import sys

import task
from pydantic_ai import Agent
from pydantic_ai.models.instrumented import InstrumentationSettings

provider = task.tracer_provider()
Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))
agent = Agent(sys.argv[1], name="weather", instructions=task.SYSTEM, tools=list(task.TOOLS.values()))
print(agent.run_sync(task.PROMPT).output)
provider.shutdown()
