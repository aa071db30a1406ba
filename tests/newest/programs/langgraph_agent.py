"""A graph of LangGraph: langgraph_agent.py openinference|openllmetry claude|gpt|responses."""
# /// script
# dependencies = [
#     "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "langgraph", "langchain-anthropic",
#     "langchain-openai", "openinference-instrumentation-langchain", "opentelemetry-instrumentation-langchain",
# ]
# ///

from __future__ import annotations

import sys
from typing import Any

import task
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

MODELS = {
    "claude": lambda: ChatAnthropic(model=task.CLAUDE, max_retries=0),
    "gpt": lambda: ChatOpenAI(model=task.GPT, max_retries=0),
    "responses": lambda: ChatOpenAI(model=task.GPT, max_retries=0, use_responses_api=True),
}

library, model_name = sys.argv[1:]
provider = task.tracer_provider()
if library == "openinference":
    from openinference.instrumentation.langchain import LangChainInstrumentor
else:
    from opentelemetry.instrumentation.langchain import LangchainInstrumentor as LangChainInstrumentor
LangChainInstrumentor().instrument(tracer_provider=provider)

tools = list(task.TOOLS.values())
model = MODELS[model_name]().bind_tools(tools)


def ask(state: MessagesState) -> dict[str, Any]:
    return {"messages": [model.invoke([SystemMessage(task.SYSTEM), *state["messages"]])]}


builder = StateGraph(MessagesState)
builder.add_node("ask", ask)
builder.add_node("tools", ToolNode(tools))
builder.add_edge(START, "ask")
builder.add_conditional_edges("ask", tools_condition)
builder.add_edge("tools", "ask")
graph = builder.compile(name="weather")
print(graph.invoke({"messages": [{"role": "user", "content": task.PROMPT}]})["messages"][-1].text)
provider.shutdown()
