"""Functions as tools: schema, arguments, and validation errors.

May import runs.tools.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import date
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from runs.tools.base import Effect, ToolContext, ToolResult
from runs.tools.functions import MAX_ARGUMENTS_BYTES, tool


class Place(BaseModel):
    city: str
    days: int = 1


@tool(effect=Effect.READ, timeout_s=5)
def forecast(ctx: ToolContext, city: str, days: Annotated[int, Field(ge=1, le=7)] = 1, unit: Literal["c", "f"] = "c"):
    """Tell the weather.

    Args:
        city: Where.
        days: How many days ahead.
    """
    return {"city": city, "days": days, "unit": unit, "call": ctx.call_id}


def test_schema_comes_from_the_signature_without_the_context():
    assert forecast.name == "forecast"
    assert forecast.description == "Tell the weather."
    assert forecast.parameters_schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["city"],
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {
                "type": "integer",
                "minimum": 1,
                "maximum": 7,
                "default": 1,
                "description": "How many days ahead.",
            },
            "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
        },
    }


def test_the_definition_for_the_provider_has_the_tool_s_name_description_and_schema():
    definition = forecast.definition

    assert (definition.name, definition.description) == ("forecast", "Tell the weather.")
    assert definition.parameters_json_schema == forecast.parameters_schema
    assert definition.kind == "function"


def test_a_single_model_argument_is_the_schema_itself(ctx):
    @tool()
    def visit(place: Place) -> str:
        return f"{place.city} for {place.days}"

    assert visit.parameters_schema["required"] == ["city"]
    assert visit.run(ctx, {"city": "Ulm"}).output == "Ulm for 1"


def test_extra_keywords_and_no_parameters_work(ctx):
    @tool()
    def anything(**rest: int) -> dict[str, int]:
        return rest

    @tool(name="other-name")
    def nothing() -> str:
        return "ok"

    assert anything.run(ctx, '{"a": 1, "b": 2}').output == '{"a": 1, "b": 2}'
    assert nothing.name == "other-name"
    for empty in ("", "  ", "{}", {}):
        assert nothing.run(ctx, empty) == ToolResult("ok")


def test_arguments_are_parsed_alike_from_text_and_objects(ctx):
    @tool()
    def book(day: date, seats: tuple[int, int]) -> str:
        return f"{day:%d.%m.%Y} {seats[0]}-{seats[1]}"

    arguments = {"day": "2024-02-29", "seats": [1, 2]}
    assert book.run(ctx, arguments).output == "29.02.2024 1-2"
    assert book.run(ctx, json.dumps(arguments)).output == "29.02.2024 1-2"


@pytest.mark.parametrize("effect", Effect)
def test_the_effect_decides_about_retries(effect):
    assert tool(effect=effect)(lambda_free).may_repeat is (effect is not Effect.AT_MOST_ONCE)
    assert tool(effect=effect, repeats_after_error=True)(lambda_free).may_repeat


def lambda_free() -> None:
    """A plain function."""


def test_the_default_effect_is_at_most_once():
    plain = tool()(lambda_free)

    assert plain.effect is Effect.AT_MOST_ONCE
    assert (plain.timeout_s, plain.needs_approval, plain.inline) == (30, False, False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("{", "not JSON"),
        ("not json at all", "not JSON"),
        ('{"city": "Ulm"} trailing', "not JSON"),
        ('{"city": NaN}', "not JSON"),
        ({"city": float("nan")}, "not JSON"),
        ('{"city": "\\ud800"}', "not JSON"),
        ('{"city": "\ud800"}', "not JSON"),
        ({"city": "\ud800"}, "not JSON"),
        ({"city": object()}, "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "a JSON object, not a list"),
        ('["Ulm"]', "a JSON object, not a list"),
        ('"Ulm"', "a JSON object, not a string"),
        ("null", "a JSON object, not null"),
        ("42", "a JSON object, not a number"),
        ("true", "a JSON object, not a boolean"),
        ("{}", "city: Field required"),
        ('{"city": 5}', "city: Input should be a valid string"),
        ('{"city": null}', "city: Input should be a valid string"),
        ('{"city": "Ulm", "days": "soon"}', "days: Input should be a valid integer"),
        ('{"city": "Ulm", "days": 8}', "days: Input should be less than or equal to 7"),
        ('{"city": "Ulm", "unit": "k"}', "unit: Input should be 'c' or 'f'"),
        ('{"city": "Ulm", "country": "DE"}', "country: Extra inputs are not permitted"),
        ('{"ctx": {}, "city": "Ulm"}', "ctx: Extra inputs are not permitted"),
        ({"city": "x" * 5_000_000}, f"the limit is {MAX_ARGUMENTS_BYTES}"),
        (json.dumps({"city": "x" * 5_000_000}), f"the limit is {MAX_ARGUMENTS_BYTES}"),
    ],
    ids=lambda value: value[:30].encode("unicode_escape").decode() if isinstance(value, str) else "object",
)
def test_invalid_arguments_are_a_soft_error_and_the_function_does_not_run(ctx, arguments, said):
    ran = []

    def forecast(city: str, days: Annotated[int, Field(ge=1, le=7)] = 1, unit: Literal["c", "f"] = "c"):
        ran.append(city)

    result = tool()(forecast).run(ctx, arguments)

    assert result.is_error
    assert result.output.startswith("Nothing was run. ")
    assert said in result.output
    assert len(result.output) < 3_000
    assert not ran


def test_a_validation_error_never_repeats_the_value(ctx):
    result = forecast.run(ctx, {"city": "Ulm", "days": "sk-secret-value"})

    assert "sk-secret-value" not in result.output


def test_many_validation_errors_are_counted_and_not_all_listed(ctx):
    result = forecast.run(ctx, {"city": "Ulm", **{f"extra{n}": n for n in range(50)}})

    assert result.output.count("\n- ") == 11
    assert "and 40 more" in result.output


def test_functions_with_unsupported_signatures_are_refused():
    async def pieces() -> AsyncIterator[int]:
        yield 1

    def positional(a: int, /) -> None: ...

    def many(*args: int) -> None: ...

    for wrong in (pieces, positional, many):
        with pytest.raises(TypeError, match=wrong.__name__):
            tool()(wrong)


def test_a_time_limit_that_is_not_positive_is_refused():
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="timeout_s"):
            tool(timeout_s=wrong)(lambda_free)
