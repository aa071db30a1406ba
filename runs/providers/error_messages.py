"""Provider errors for people: one sentence that says what is wrong, and one that says what to do.

What the vendor or its library said stays in the details of the error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

#: Vendors whose name is not their prefix with a capital letter.
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
#: Vendors whose variable is not `<PREFIX>_API_KEY`.
KEY_VARIABLES = {
    "cohere": "CO_API_KEY",
    "grok": "XAI_API_KEY",
    "huggingface": "HF_TOKEN",
    "azure": "AZURE_OPENAI_API_KEY",
    "gateway": "PYDANTIC_AI_GATEWAY_API_KEY",
    "bedrock": "AWS_ACCESS_KEY_ID",
}
#: Of the vendor's own words in a sentence; the details have all of them.
MAX_WORDS = 300
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]{1,30}(?:_[A-Z0-9]{1,30}){1,6}\b")
_PACKAGE = re.compile(r"pydantic-ai-slim\[([a-z0-9_-]{1,40})\]")


@dataclass(frozen=True)
class CallFailure:
    """What is known of a failed model call, for its sentence."""

    #: As agents name it: "anthropic:claude-sonnet-5-5".
    model: str = ""
    status: int | None = None
    #: What the vendor said, or its library.
    words: str = ""

    @property
    def vendor(self) -> str:
        """The prefix of the model without what only says which of the vendor's APIs is meant."""
        prefix, colon, _ = self.model.partition(":")
        return re.sub(r"-(responses|chat|gla|vertex|cloud)$", "", prefix) if colon else ""

    @property
    def who(self) -> str:
        return LABELS.get(self.vendor, self.vendor.capitalize()) or "The model provider"

    @property
    def key(self) -> str:
        """The variable that holds the key; named by the library's words where they do."""
        if not self.vendor:
            return "the variable of its API key"
        return KEY_VARIABLES.get(self.vendor, f"{self.vendor.upper().replace('-', '_')}_API_KEY")

    @property
    def code(self) -> str:
        return f" (HTTP {self.status})" if self.status else ""

    @property
    def said(self) -> str:
        return f": {self.words}" if self.words else ""


WHERE = "in the environment of the workers (with Docker Compose in `.env`), restart them, then resume the run"
SENTENCES = {
    "missing_key": f"{{who}} has no API key here: {{key}} is not set. Set it {WHERE}.",
    "unauthorized": f"{{who}} rejected the API key{{code}}{{said}}. Put a valid key into {{key}} {WHERE}.",
    "forbidden": "{who} denied access{code}{said}. Check what the key in {key} may use, then resume the run.",
    "out_of_credits": "The account at {who} has no credits left{code}. Add credits or raise its spending limit there, "
    "then resume the run.",
    "unknown_model": "{who} does not know the model {model!r}, or the API key may not use it{code}. Fork the run with "
    "another model, or resume it when the model is available.",
    "context_too_long": "The conversation is longer than the model accepts{code}{said}. Fork the run from an earlier "
    "step, or with `context_window` in the agent's settings.",
    "invalid_request": "{who} refused the request{code}{said}. Fork the run with other settings or another model, or "
    "resume it when the cause is removed.",
    "rate_limited": "{who} limits the rate of requests{code}{said}. If this lasts, raise the limit there or lower "
    "AGENTOPS_CONCURRENCY.",
    "overloaded": "{who} is overloaded{code}{said}. This usually passes within minutes.",
    "server_error": "{who} has an internal error{code}. This usually passes within minutes.",
    "timeout": "{who} did not answer in time. If this lasts, check the provider's status page and the `timeout` in the "
    "agent's settings.",
    "no_internet": "{who} cannot be reached from the worker. If this lasts, check the worker's network and the "
    "provider's status page.",
    "incomplete_answer": "{who} ended an answer before it was complete. What came of it is marked as abandoned.",
    "missing_library": "The library for model {model!r} is not installed. Install it where the workers run{how}, "
    "restart them, then resume the run.",
    "unusable_model": "Model {model!r} cannot be used as it is configured{said}. Correct the configuration, restart "
    "the workers, then resume the run, or fork it with another model.",
    "other": "The call of the model failed{said}. If this lasts, see the details of the error.",
}


def sentence(kind: str, facts: CallFailure) -> str:
    """Return the text for people; kinds without a text of their own get a general one."""
    key, how = facts.key, ""
    if kind == "missing_key":
        named = [word for word in _VARIABLE.findall(facts.words) if not word.endswith("_BASE_URL")]
        key = named[0] if named else key
    if kind == "missing_library":
        package = _PACKAGE.search(facts.words)
        how = f" (`pip install 'pydantic-ai-slim[{package[1]}]'`)" if package else ""
    text = SENTENCES.get(kind, SENTENCES["other"])
    return text.format(
        who=facts.who, key=key, how=how, code=facts.code, said=facts.said, model=facts.model or "of this agent"
    )


def names_a_key(words: str) -> bool:
    """Whether a library complains that a key or token is not set."""
    return any(re.search(r"(KEY|TOKEN|KEY_ID)$", word) for word in _VARIABLE.findall(words))


def words_of(body: Any) -> str:
    """The vendor's message in the body of an error, on one line; "" where there is none."""
    if isinstance(body, dict):
        body = body.get("error", body)
    if isinstance(body, dict):
        body = body.get("message")
    text = " ".join(body.split()) if isinstance(body, str) else ""
    if text.startswith("<"):
        return ""  # the error page of a proxy
    return (text if len(text) <= MAX_WORDS else f"{text[: MAX_WORDS - 1]}…").rstrip(".")
