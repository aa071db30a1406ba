"""A durable agent loop without a framework: it survives `kill -9`, and waits for a person without a process.

Usage: AGENTOPS_URL=http://127.0.0.1:8000 AGENTOPS_API_KEY=… python research_desk.py
Then start a run of the agent `research-desk` on the site, and approve its call under *Needs you*.
"""

from __future__ import annotations

from typing import Any

from agentops.durable import Answer, Call, Denied, DurableRun, Usage, durable, serve_forever

TOPICS = {"tides": "The moon pulls the water.", "rain": "Warm air carries water up."}


async def ask_model(run: DurableRun, messages: list[dict[str, Any]]) -> Answer:
    """Stand in for the SDK of your provider: it looks up a topic, publishes what it found, and ends."""
    turn = len([message for message in messages if message["role"] == "assistant"])
    usage = Usage(input_tokens=40 + 20 * turn, output_tokens=12)
    if turn == 0:
        run.stream("I look it up.")
        call = Call(id="call_1", name="look_up", arguments={"topic": messages[0]["content"]}, effect="read")
        return Answer(text="I look it up.", calls=[call], usage=usage, finish_reason="tool_call")
    if turn == 1:
        call = Call(id="call_2", name="publish", arguments={"text": messages[-1]["content"]}, needs_approval=True)
        return Answer(calls=[call], usage=usage, finish_reason="tool_call")
    return Answer(text=f"The result: {messages[-1]['content']}", usage=usage, finish_reason="stop")


async def look_up(topic: str) -> str:
    """A tool without an effect: repeated if the process dies in it."""
    return TOPICS.get(topic, f"Nothing is known about {topic}.")


async def publish(text: str) -> str:
    """A tool with an effect: if the process dies in it, a person says what happened."""
    return f"published {len(text)} characters"


TOOLS = {"look_up": look_up, "publish": publish}


@durable("research-desk", description="Researches a topic and publishes what it finds.")
async def research_desk(run: DurableRun, prompt: str) -> str:
    """Run the loop until the model asks for no further tool, and let another agent check the answer."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    while (answer := await run.model("scripted-model", ask_model, run, messages)).calls:
        messages.append({"role": "assistant", "content": answer.text})
        for call in answer.calls:
            try:
                result = await run.tool(call, TOOLS[call.name])
            except Denied as denial:
                result = denial.message
            messages.append({"role": "tool", "content": result})
    check = await run.child("spell-check", answer.text, timeout_s=3600)
    return f"{answer.text} ({check.result})"


@durable("spell-check")
def spell_check(run: Any, prompt: str) -> str:
    """A synchronous function, executed in a thread."""
    mistakes = run.step("count", lambda: sum(word.isdecimal() for word in prompt.split()), effect="read")
    return f"{mistakes} numbers"


if __name__ == "__main__":
    serve_forever(research_desk, spell_check)
