# Importing a provider's module is what puts it on the list.
from runs.providers import fixture, llm

__all__ = ["fixture", "llm"]
