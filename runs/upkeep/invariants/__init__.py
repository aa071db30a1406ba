"""What must be true of the stored rows, whatever crashed: statements, and who asks whether they hold."""

from __future__ import annotations

from runs.upkeep.invariants.asking import LISTED, snapshot
from runs.upkeep.invariants.checker import INVARIANTS, Report, check, look
from runs.upkeep.invariants.statement import Invariant, Violation

__all__ = ["INVARIANTS", "LISTED", "Invariant", "Report", "Violation", "check", "look", "snapshot"]
