"""Invariants: statements that must hold for the stored rows after any crash, and the check of them."""

from __future__ import annotations

from runs.upkeep.invariants.checker import INVARIANTS, UPGRADE, Report, check, check_within
from runs.upkeep.invariants.invariant import Invariant, Violation
from runs.upkeep.invariants.invariant_sql import LISTED, snapshot

__all__ = ["INVARIANTS", "LISTED", "UPGRADE", "Invariant", "Report", "Violation", "check", "check_within", "snapshot"]
