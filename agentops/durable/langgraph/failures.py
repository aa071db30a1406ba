"""Exceptions of models and tools as LangChain raised them, so that its rules for fallbacks and retries apply."""

from __future__ import annotations

from langchain_core import exceptions
from langchain_core.exceptions import ModelError
from langchain_core.tools import ToolException

from agentops.durable.errors import StepFailed
from agentops.durable.failures import exception_of

#: Exceptions that are made from a text.
_FROM_TEXT: dict[str, type[Exception]] = {
    ToolException.__name__: ToolException,
    **{
        name: kind for name, kind in vars(exceptions).items() if isinstance(kind, type) and issubclass(kind, ModelError)
    },
}


def original_of(error: StepFailed) -> Exception:
    """Return the exception of a model or tool if its class can be made from the journal; otherwise the failure."""
    return exception_of(error, _FROM_TEXT)
