"""Executes the function of a started step: attempts, retries, the time limit, and the storage of the outcome."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentops.client.errors import ApiError
from agentops.durable.arguments import Arguments
from agentops.durable.calling import ThreadCancelled, call_function
from agentops.durable.codec import Values
from agentops.durable.errors import TIMEOUT, UNSTORABLE, StepFailed, UnstorableValue, step_failure
from agentops.durable.gate import RunGate
from agentops.durable.positions import Position, Positions, current_step
from agentops.durable.retries import NO_RETRIES, RetryPolicy
from agentops.durable.writer import StepWriter

#: Maximum bytes of a value in one operation, and of a piece of a larger value. A site accepts 5 MiB and 1 MiB.
MAX_VALUE = MAX_PIECE = 1024 * 1024
#: Maximum number of pieces.
MAX_PIECES = 256
#: Maximum characters of the type and the message of a stored error.
MAX_TYPE, MAX_MESSAGE = 64, 8_000


@dataclass(frozen=True)
class Work:
    """The function of a step."""

    arguments: Arguments
    retries: RetryPolicy = NO_RETRIES
    timeout_s: float | None = None
    #: Returns the value to store, and further members of the operation that stores it. Raises `TypeError`.
    convert: Callable[[Any], tuple[Any, dict[str, Any]]] = lambda value: (value, {})
    #: Whether the function calls methods of the run.
    has_steps: bool = False

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function, which can be cancelled."""
        return inspect.iscoroutinefunction(self.arguments.function)

    def check(self) -> None:
        """Raise `ValueError` for a time limit that cannot be kept."""
        if self.timeout_s is not None and not self.is_async:
            raise ValueError("timeout_s needs a coroutine function: a function in a thread cannot be interrupted")


@dataclass(frozen=True)
class _Started:
    """A started step."""

    position: Position
    name: str
    work: Work
    #: The function with its arguments.
    call: Callable[[], Any]

    @property
    def key(self) -> str:
        return self.position.key


class Attempts:
    """Executes the steps of one run."""

    def __init__(self, writer: StepWriter, gate: RunGate, values: Values, positions: Positions) -> None:
        self._writer = writer
        self._gate = gate
        self._values = values
        self._positions = positions

    async def run(self, position: Position, name: str, work: Work, started: Mapping[str, Any]) -> Any:
        """Execute a step until an attempt succeeds, and return the stored value.

        `started`: the site's response to the start. Raises `StepFailed` after the last attempt.
        """
        call = work.arguments.call(key=started.get("idempotency_key"), changed=started.get("input"))
        step = _Started(position, name, work, call)
        attempt = 0
        while True:
            began = time.monotonic()
            try:
                result = await self._call(step)
            except ThreadCancelled as ended:
                await self._end_cancelled(step, ended.result, began)
            except Exception as error:
                pause = work.retries.pause_before_retry(attempt, error)
                await self._fail(step, _stored_form(error), began, pause)
                if pause is None:
                    raise self._failed(step, error) from error
                await asyncio.sleep(pause)
                attempt += 1
            else:
                return await self._finish(step, result, began)

    async def _call(self, step: _Started) -> Any:
        if step.work.has_steps:
            async with self._gate.resting():
                return await call_function(step.call, self._gate, is_async=step.work.is_async)
        token = current_step.set(step.key)
        try:
            async with asyncio.timeout(step.work.timeout_s) as limit:
                return await call_function(step.call, self._gate, is_async=step.work.is_async)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise step_failure(step.name, TIMEOUT, f"it took longer than {step.work.timeout_s:g} s") from error
        finally:
            current_step.reset(token)

    async def _end_cancelled(self, step: _Started, result: asyncio.Future[Any], began: float) -> None:
        """Store the outcome of a function in a thread that ended after its step was cancelled. Raise CancelledError."""
        error = result.exception()
        if error is None:
            await self._finish(step, result.result(), began)
        else:
            await self._fail(step, _stored_form(error), began, None)
            self._positions.failed(step.position, _stored_form(error))
        raise asyncio.CancelledError

    # --- Outcomes ---

    async def _finish(self, step: _Started, result: Any, began: float) -> Any:
        """Store a value, and return it as stored. Raises `UnstorableValue`."""
        try:
            value, members = self._converted(step, result)
            text = self._values.encode(step.name, value)
            members["duration_ms"] = _milliseconds(began)
            answer = await self._writer.submit(*self._operations(step, text, members))
        except (UnstorableValue, ApiError) as error:
            problem = error if isinstance(error, UnstorableValue) else _refused(step, error)
            await self._fail(step, _stored_form(problem), began, None)
            raise self._failed(step, problem) from error
        if "value" in answer:
            return self._values.decode(step.name, answer["value"], answer.get("codec") or "")
        return self._values.decode_text(step.name, text, self._values.codec_name)

    @staticmethod
    def _converted(step: _Started, result: Any) -> tuple[Any, dict[str, Any]]:
        try:
            return step.work.convert(result)
        except TypeError as error:
            raise UnstorableValue(step.name, UNSTORABLE, str(error)) from error

    def _operations(self, step: _Started, text: str, members: dict[str, Any]) -> Iterator[dict[str, Any] | str]:
        """Yield the operations that store a value: its pieces, if it is large, and the end of the step."""
        end = {"op": "finish", "key": step.key, "codec": self._values.codec_name, **members}
        whole = text.encode()
        if len(whole) <= MAX_VALUE:
            value = json.dumps(text) if self._values.codec_name else text
            yield f'{json.dumps(end, separators=(",", ":"))[:-1]},"value":{value}}}'
            return
        pieces = list(_pieces(whole))
        if len(pieces) > MAX_PIECES:
            limit = MAX_PIECES * MAX_PIECE // 2**20
            problem = f"it returned a value of {len(whole):,} bytes as JSON, more than about {limit} MiB"
            raise UnstorableValue(step.name, UNSTORABLE, problem)
        for index, piece in enumerate(pieces):
            yield {"op": "piece", "key": step.key, "index": index, "data": piece}
        yield {**end, "pieces": len(pieces), "sha256": hashlib.sha256(whole).hexdigest()}

    async def _fail(self, step: _Started, error: dict[str, str], began: float, pause: float | None) -> None:
        """Record a failed attempt, which is not the outcome of the step yet."""
        operation: dict[str, Any] = {"op": "fail", "key": step.key, "error": error, "final": False}
        if pause is not None:
            operation["retry_in_s"] = round(pause, 3)
        await self._writer.submit({**operation, "duration_ms": _milliseconds(began)})

    def _failed(self, step: _Started, error: Exception) -> StepFailed:
        """Remember that the step has failed, and return the exception for its function."""
        stored = _stored_form(error)
        self._positions.failed(step.position, stored)
        return step_failure(step.name, stored["type"], stored["message"])


def _milliseconds(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


def _stored_form(error: BaseException) -> dict[str, str]:
    """Return an exception as the journal stores it."""
    kind, message = (error.type, error.message) if isinstance(error, StepFailed) else (type(error).__name__, str(error))
    return {"type": kind[:MAX_TYPE], "message": message[:MAX_MESSAGE]}


def _refused(step: _Started, error: ApiError) -> UnstorableValue:
    return UnstorableValue(step.name, UNSTORABLE, f"the site refuses its value ({error.code}): {error.detail}")


def _pieces(whole: bytes) -> Iterator[str]:
    """Yield parts of UTF-8 text of at most `MAX_PIECE` bytes, without splitting a character."""
    start = 0
    while start < len(whole):
        end = min(start + MAX_PIECE, len(whole))
        while end < len(whole) and whole[end] & 0xC0 == 0x80:
            end -= 1
        yield whole[start:end].decode()
        start = end
