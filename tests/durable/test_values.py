"""Values of steps: JSON, codecs, retries, and answers of models."""

from __future__ import annotations

import base64
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.durable import Answer, Call, Codec, RetryPolicy, StepTimeout, UnstorableValue, Usage
from agentops.durable.codec import Values

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


class Objects(Codec):
    """A codec for any object of Python."""

    name = "objects"

    def dumps(self, value: Any) -> str:
        return base64.b64encode(pickle.dumps(value)).decode()

    def loads(self, text: str) -> Any:
        return pickle.loads(base64.b64decode(text))


class Reversed(Codec):
    name = "reversed"

    def encode(self, text: str) -> str:
        return text[::-1]

    decode = encode


@given(JSON)
@pytest.mark.parametrize("values", [Values(), Values(Reversed())], ids=["json", "codec"])
def test_json_comes_back(values: Values, value: Any) -> None:
    assert values.decode_text("a", values.encode("a", value), values.codec_name) == value


@pytest.mark.parametrize(
    ("value", "stored"),
    [((1, 2), [1, 2]), ({1: "a"}, {"1": "a"}), ("\ud800x", "\ufffdx"), ("\ud83d\ude00", "\U0001f600")],
)
def test_the_value_is_the_stored_one(value: Any, stored: Any) -> None:
    values = Values()

    assert values.decode_text("a", values.encode("a", value), "") == stored


@pytest.mark.parametrize("value", [{1, 2}, b"x", float("nan"), object()])
def test_other_values_are_refused_by_the_name_of_the_step(value: Any) -> None:
    with pytest.raises(TypeError, match=rf"step 'load' .*a {type(value).__name__}, which is not JSON"):
        Values().encode("load", value)

    values = Values(Objects())
    if isinstance(value, bytes | set):
        assert values.decode_text("load", values.encode("load", value), "objects") == value


def test_a_value_of_an_unknown_codec_is_refused() -> None:
    for values in (Values(), Values(Reversed())):
        with pytest.raises(LookupError, match="step 'load' was stored with the codec 'objects'"):
            values.decode("load", "x", "objects")
    assert Values(Reversed()).decode("load", {"a": 1}, "") == {"a": 1}
    with pytest.raises(ValueError, match="name '' of the codec"):
        Values(Codec())


def test_answers_are_json_and_are_reported_without_what_is_sealed() -> None:
    calls = (Call(id="c1", name="look_up", arguments={"order": 17}, effect="read"), Call(id="c2", name="stop"))
    answer = Answer(text="I look.", calls=calls, usage=Usage(input_tokens=5), cost_usd="0.1", raw={"id": "m1"})
    values = Values()

    assert Answer.from_value(values.decode_text("a", values.encode("a", answer.as_value()), "")) == answer
    report = answer.as_reported("model-1", is_sealed=False)
    assert (report["text"], report["model"], report["usage"]["input_tokens"]) == ("I look.", "model-1", 5)
    assert not {"raw", "finish_reason"} & report.keys()
    assert answer.as_reported("model-1", is_sealed=True)["text"] == ""


def test_retries_are_limited_by_number_and_by_exception() -> None:
    policy = RetryPolicy(retries=2, first_s=1, longest_s=1.5, on=(OSError,))

    assert policy.pause_before_retry(2, OSError()) is None
    assert policy.pause_before_retry(0, ValueError()) is None
    pauses = [policy.pause_before_retry(attempt, OSError()) or 0 for attempt in (0, 1)]
    assert 0.5 <= pauses[0] <= 1
    assert 0.75 <= pauses[1] <= 1.5
    assert RetryPolicy.of(4) == RetryPolicy(4)


def test_failures_are_exceptions_of_python_too() -> None:
    assert issubclass(StepTimeout, TimeoutError)
    assert issubclass(UnstorableValue, TypeError)
