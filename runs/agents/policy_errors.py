"""The error of an invalid policy."""

from __future__ import annotations

from collections.abc import Sequence


class InvalidPolicy(ValueError):
    """A policy is invalid. `path` is the path of the invalid value within `policies`."""

    code = "invalid_policy"

    def __init__(self, text: str, path: Sequence[str | int]) -> None:
        super().__init__(text)
        self.path = tuple(path)
