"""An agent of LangChain, traced by LangSmith's own exporter: langchain_agent.py claude|gpt|responses."""
# /// script
# dependencies = [
#     "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "langchain", "langchain-anthropic",
#     "langchain-openai", "langsmith[otel]",
# ]
# ///

from __future__ import annotations

import os
import sys

os.environ |= {"LANGSMITH_TRACING": "true", "LANGSMITH_OTEL_ENABLED": "true", "LANGSMITH_OTEL_ONLY": "true"}

import task
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tracers.langchain import wait_for_all_tracers
from langchain_openai import ChatOpenAI

MODELS = {
    "claude": lambda: ChatAnthropic(model=task.CLAUDE, max_retries=0),
    "gpt": lambda: ChatOpenAI(model=task.GPT, max_retries=0),
    "responses": lambda: ChatOpenAI(model=task.GPT, max_retries=0, use_responses_api=True),
}

provider = task.tracer_provider()
agent = create_agent(MODELS[sys.argv[1]](), list(task.TOOLS.values()), system_prompt=task.SYSTEM, name="weather")
print(agent.invoke({"messages": [{"role": "user", "content": task.PROMPT}]})["messages"][-1].text)
wait_for_all_tracers()
provider.shutdown()
