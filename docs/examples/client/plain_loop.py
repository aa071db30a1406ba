"""An agent loop without a framework, recorded as a run of an agentops site.

Usage: SITE_URL=http://127.0.0.1:8000 SITE_KEY=… python plain_loop.py
"""

from __future__ import annotations

import os
from typing import Any

from agentops.client import Recorder


def ask_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Stand in for the SDK of your provider: first a tool call, then an answer."""
    if messages[-1]["role"] == "user":
        call = {"id": "call_1", "name": "count_words", "arguments": {"text": messages[-1]["content"]}}
        return {"text": "I count.", "calls": [call], "usage": {"input_tokens": 20, "output_tokens": 9}}
    return {"text": f"{messages[-1]['content']} words.", "calls": [], "usage": {"input_tokens": 35, "output_tokens": 3}}


def count_words(text: str) -> int:
    """The tool."""
    return len(text.split())


def main() -> None:
    """Run the loop until the model asks for no further tool."""
    prompt = "How many words has this sentence?"
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    with Recorder(os.environ["SITE_URL"], os.environ["SITE_KEY"], agent="word-counter", prompt=prompt) as run:
        while True:
            answer = ask_model(messages)
            calls = [(call["id"], call["name"], call["arguments"]) for call in answer["calls"]]
            run.turn(answer["text"], tool_calls=calls, usage=answer["usage"])
            if not calls:
                break
            for call_id, name, arguments in calls:
                with run.tool_call(name, arguments, call_id=call_id) as call:
                    call.output = count_words(**arguments)
                messages.append({"role": "tool", "content": str(call.output)})
    print(answer["text"])


if __name__ == "__main__":
    main()
