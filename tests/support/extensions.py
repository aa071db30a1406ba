"""Parts that packages and modules add, for one test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from runs.management.commands.extensions import CATALOGUES


def search_again() -> None:
    """Let all catalogues search for added parts at their next use."""
    for catalogue in CATALOGUES:
        catalogue.forget()


@contextmanager
def added_parts() -> Iterator[None]:
    """Use the parts that are installed, or named by settings, at the time of their first use within the context."""
    search_again()
    try:
        yield
    finally:
        search_again()
