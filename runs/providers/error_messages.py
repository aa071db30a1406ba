"""Messages for failed model calls: one sentence with the problem and one with the remedy.

The details of an error contain the whole message of the vendor or its library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

#: Names of vendors that are not simply the capitalised prefix.
LABELS = {
    "openai": "OpenAI",
    "openrouter": "OpenRouter",
    "deepseek": "DeepSeek",
    "huggingface": "Hugging Face",
    "xai": "xAI",
    "grok": "xAI",
    "zai": "Z.ai",
    "vllm": "vLLM",
    "gateway": "The gateway",
}
#: Environment variables of vendors that do not use `<PREFIX>_API_KEY`.
KEY_VARIABLES = {
    "cohere": "CO_API_KEY",
    "grok": "XAI_API_KEY",
    "huggingface": "HF_TOKEN",
    "azure": "AZURE_OPENAI_API_KEY",
    "gateway": "PYDANTIC_AI_GATEWAY_API_KEY",
    "bedrock": "AWS_ACCESS_KEY_ID",
}
#: Maximum characters of the vendor's message within a sentence.
MAX_VENDOR_MESSAGE = 300
#: An environment variable in a message.
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]{1,30}(?:_[A-Z0-9]{1,30}){1,6}\b")
#: The extra of pydantic-ai-slim that an error about a missing library names.
_PACKAGE = re.compile(r"pydantic-ai-slim\[([a-z0-9_-]{1,40})\]")


@dataclass(frozen=True)
class CallFailure:
    """The facts about a failed model call from which its message is built."""

    #: The model as configured, for example "anthropic:claude-sonnet-5-5".
    model: str = ""
    status: int | None = None
    #: The message of the vendor or its library.
    vendor_message: str = ""
    #: Host and port of the server that the agent names; empty for the vendor's server.
    server: str = ""

    @property
    def vendor(self) -> str:
        """The prefix of the model, without a suffix that selects an API of the vendor; empty without a prefix."""
        prefix, colon, _ = self.model.partition(":")
        return re.sub(r"-(responses|chat|gla|vertex|cloud)$", "", prefix) if colon else ""

    @property
    def vendor_name(self) -> str:
        """The name of the vendor, at the start of a sentence."""
        if self.server:
            return f"The model server {self.server}"
        return LABELS.get(self.vendor, self.vendor.capitalize()) or "The model provider"

    @property
    def key(self) -> str:
        """The environment variable of the vendor's API key, or a phrase for an unknown one."""
        if self.server:
            return "the variable that AGENTOPS_MODEL_KEYS assigns to it"
        if not self.vendor:
            return "the variable of its API key"
        return KEY_VARIABLES.get(self.vendor, f"{self.vendor.upper().replace('-', '_')}_API_KEY")

    @property
    def code(self) -> str:
        """The HTTP status in parentheses; empty without one."""
        return f" (HTTP {self.status})" if self.status else ""

    @property
    def detail(self) -> str:
        """A colon and the vendor's message; empty without one."""
        return f": {self.vendor_message}" if self.vendor_message else ""


SET_VARIABLE = "in the environment of the workers (with Docker Compose in `.env`), restart them, then resume the run"
TEXTS = {
    "missing_key": f"{{vendor}} has no API key: {{key}} is not set. Set it {SET_VARIABLE}.",
    "unauthorized": f"{{vendor}} rejected the API key{{code}}{{detail}}. Put a valid key into {{key}} {SET_VARIABLE}.",
    "forbidden": "{vendor} denied access{code}{detail}. Check the permissions of the key in {key}, then "
    "resume the run.",
    "out_of_credits": "The account at {vendor} has no credits left{code}. Add credits or raise its spending limit "
    "there, then resume the run.",
    "unknown_model": "{vendor} does not know the model {model!r}, or the API key may not use it{code}. Fork the run "
    "with another model, or resume it when the model is available.",
    "context_too_long": "The conversation is longer than the model accepts{code}{detail}. Fork the run from an earlier "
    "step, or with `context_window` in the agent's settings.",
    "invalid_request": "{vendor} refused the request{code}{detail}. Fork the run with other settings or another "
    "model, or resume it when the cause is fixed.",
    "rate_limited": "{vendor} limits the rate of requests{code}{detail}. If this lasts, raise the limit there or lower "
    "AGENTOPS_CONCURRENCY.",
    "overloaded": "{vendor} is overloaded{code}{detail}. This usually passes within minutes.",
    "server_error": "{vendor} has an internal error{code}. This usually passes within minutes.",
    "timeout": "{vendor} did not answer in time. If this lasts, check the provider's status page and the `timeout` "
    "in the agent's settings.",
    "no_internet": "{vendor} cannot be reached from the worker. If this lasts, check the worker's network and the "
    "provider's status page.",
    "incomplete_answer": "{vendor} closed the stream before the answer was complete. The partial answer is marked "
    "as abandoned.",
    "answer_too_long": "{vendor} did not end its answer within the limit of 16 MiB. Fork the run with `max_tokens` in "
    "the agent's settings, or with another model.",
    "missing_library": "The library for model {model!r} is not installed. Install it where the workers run{how}, "
    "restart them, then resume the run.",
    "unusable_model": "Model {model!r} cannot be used as it is configured{detail}. Correct the configuration, restart "
    "the workers, then resume the run, or fork it with another model.",
    "other": "The model call failed{detail}. If this lasts, see the details of the error.",
}
#: Texts in place of `TEXTS` for a server that the agent names, which has no status page.
SERVER_TEXTS = {
    "no_internet": "{vendor} cannot be reached from the worker. Check that it runs, and `base_url` in the agent's "
    "settings.",
    "timeout": "{vendor} did not answer in time. If this lasts, check the server, and the `timeout` in the agent's "
    "settings.",
    "incomplete_answer": "{vendor} sent no complete stream of an answer. If this lasts, check that it can stream, and "
    "that `base_url` in the agent's settings is the address of its API.",
}


def describe(kind: str, failure: CallFailure) -> str:
    """Return the message for an error. `kind`: a key of `TEXTS`; other kinds get the text of `other`."""
    key, how = failure.key, ""
    if kind == "missing_key":
        variables = [word for word in _VARIABLE.findall(failure.vendor_message) if not word.endswith("_BASE_URL")]
        key = variables[0] if variables else key
    if kind == "missing_library":
        package = _PACKAGE.search(failure.vendor_message)
        how = f" (add pydantic-ai-slim[{package[1]}] to requirements.local, then `make install`)" if package else ""
    texts = TEXTS | SERVER_TEXTS if failure.server else TEXTS
    text = texts.get(kind, texts["other"])
    return text.format(
        vendor=failure.vendor_name,
        key=key,
        how=how,
        code=failure.code,
        detail=failure.detail,
        model=failure.model or "of this agent",
    )


def mentions_key(text: str) -> bool:
    """Return whether a library's message names an environment variable of a key or token."""
    return any(re.search(r"(KEY|TOKEN|KEY_ID)$", word) for word in _VARIABLE.findall(text))


def message_of(body: Any) -> str:
    """Return the vendor's message from the body of an error response, in one line, without the full stop.

    Returns an empty text for other bodies, such as the HTML page of a proxy.
    """
    if isinstance(body, dict):
        body = body.get("error", body)
    if isinstance(body, dict):
        body = body.get("message")
    text = " ".join(body.split()) if isinstance(body, str) else ""
    if text.startswith("<"):
        return ""
    return (text if len(text) <= MAX_VENDOR_MESSAGE else f"{text[: MAX_VENDOR_MESSAGE - 1]}…").rstrip(".")
