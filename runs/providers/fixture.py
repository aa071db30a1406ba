"""The `fixture` provider: a recording answers. The model's name is the fixture's name.

May import pydantic-ai and runs.fixtures.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import cache
from typing import Any

from pydantic_ai.models import ModelRequestParameters, StreamedResponse

from runs.fixtures.library import NoSuchFixture, load
from runs.fixtures.text_files import FixtureError
from runs.providers.base import FollowUp, ModelCall, ProviderUnusable, register
from runs.providers.fixture_model import FixtureModel

NO_PARAMETERS = ModelRequestParameters()


@register("fixture")
@cache
class FixtureProvider:
    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        pace = settings.get("pace", 0)
        if isinstance(pace, bool) or not isinstance(pace, int | float) or not 0 <= pace <= 1000:
            raise ProviderUnusable("settings.pace must be a number from 0 (at once) to 1000")
        try:
            load(model)
        except NoSuchFixture as error:
            raise ProviderUnusable(str(error)) from error
        except FixtureError as error:
            raise ProviderUnusable(f"fixture {model!r} cannot be used: {error}") from error

    def open(self, call: ModelCall) -> AbstractAsyncContextManager[StreamedResponse]:
        # Not through pydantic-ai's direct request: that one looks at every message of the history.
        recorded = FixtureModel(load(call.model), call.number, call.node, float(call.settings.get("pace", 0)))
        return recorded.request_stream(call.history, None, NO_PARAMETERS)

    def context_window(self, model: str) -> int | None:
        return None

    def follow_up(self, model: str, node: str, number: int) -> FollowUp:
        fixture = load(model)
        more = number < len(fixture.answers)
        return FollowUp(user=fixture.call(number, node).user, end=fixture.ends_after(number), more=more)
