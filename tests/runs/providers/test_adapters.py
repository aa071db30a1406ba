"""A process has one adapter per model, even if several threads request it at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic_ai.models import Model
from pydantic_ai.models.function import FunctionModel

from runs.providers import llm

THREADS = 4


def test_concurrent_threads_get_one_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second adapter would hold connections that are never closed."""
    made: list[Model] = []
    others_are_there = threading.Barrier(THREADS)

    def infer(name: str) -> Model:
        # Long enough for the other threads, which the barrier has released at the same time.
        threading.Event().wait(0.05)
        made.append(FunctionModel(lambda *_: None))  # type: ignore[arg-type,return-value]
        return made[-1]

    def ask(_: int) -> Model:
        others_are_there.wait(60)
        return llm.model_of("any:model")

    monkeypatch.setattr(llm, "infer_model", infer)
    llm.adapter_of.cache_clear()
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            got = list(pool.map(ask, range(THREADS)))
    finally:
        llm.adapter_of.cache_clear()

    assert len(made) == 1
    assert all(adapter is made[0] for adapter in got)


def test_a_process_keeps_the_most_recently_used_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents may name any number of models, and each adapter holds connections."""
    monkeypatch.setattr(llm, "infer_model", lambda name: FunctionModel(lambda *_: None, model_name=name))  # type: ignore[arg-type,return-value]
    llm.adapter_of.cache_clear()
    try:
        models = [llm.model_of(f"any:{number}") for number in range(llm.MAX_ADAPTERS + 1)]

        assert llm.adapter_of.cache_info().currsize == llm.MAX_ADAPTERS
        assert llm.model_of(f"any:{llm.MAX_ADAPTERS}") is models[-1]
    finally:
        llm.adapter_of.cache_clear()
