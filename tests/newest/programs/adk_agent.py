"""An agent of Google's Agent Development Kit with its own spans: adk_agent.py 1|2, the version of its telemetry."""
# /// script
# dependencies = ["google-adk", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"]
# ///

from __future__ import annotations

import asyncio
import os
import sys

os.environ["ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN"] = sys.argv[1]
os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "SPAN_ONLY"

import task
from google.adk.agents import Agent
from google.adk.runners import InMemoryRunner
from google.genai import types

provider = task.tracer_provider()


async def main() -> None:
    agent = Agent(name="weather", model=task.GEMINI, instruction=task.SYSTEM, tools=list(task.TOOLS.values()))
    runner = InMemoryRunner(agent=agent, app_name="task")
    session = await runner.session_service.create_session(app_name="task", user_id="someone")
    message = types.Content(role="user", parts=[types.Part(text=task.PROMPT)])
    async for event in runner.run_async(user_id="someone", session_id=session.id, new_message=message):
        if event.is_final_response() and event.content:
            print("".join(part.text or "" for part in event.content.parts or []))
    await runner.close()


asyncio.run(main())
provider.shutdown()
