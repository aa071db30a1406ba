"""An agent that Langfuse's SDK traces. LANGFUSE_BASE_URL and two keys set the destination."""

from __future__ import annotations

from langfuse import get_client


def main() -> None:
    client = get_client()
    assert client.auth_check()
    with client.start_as_current_observation(name="traced", as_type="agent", input={"task": "do it"}) as root:
        with client.start_as_current_observation(name="turn", as_type="span"):
            asked = [{"role": "user", "content": "List the files"}]
            with client.start_as_current_observation(
                name="llm", as_type="generation", model="claude-haiku-4-5", input=asked
            ) as generation:
                usage = {"input": 10, "output": 3, "cache_read_input_tokens": 100}
                generation.update(output="I look.", usage_details=usage, cost_details={"total": 0.001})
            with client.start_as_current_observation(name="bash", as_type="tool", input={"command": "ls"}) as tool:
                tool.update(output="no such file", level="ERROR", status_message="exit 2")
        root.update(output="done")
    client.flush()
    client.shutdown()


if __name__ == "__main__":
    main()
