"""The errors of alerts."""

from __future__ import annotations

from runs.errors import InvalidInput, RunRefusal


class AlertRuleNotFound(RunRefusal):
    """The project has no such rule."""

    code = "alert_rule_not_found"
    status = 404


#: Names that differ in the API.
_API_NAMES = {"agent": "agent_id"}


class InvalidAlertRule(InvalidInput):
    """A rule is invalid. `data["pointer"]` is the JSON pointer of the field."""

    code = "invalid_alert_rule"

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message, pointer=f"/{_API_NAMES.get(field, field)}" if field else "")
        self.field = field


class InvalidMute(InvalidInput):
    """A mute is invalid."""

    code = "invalid_mute"
