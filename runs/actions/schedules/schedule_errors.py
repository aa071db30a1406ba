"""The errors of schedules."""

from __future__ import annotations

from runs.errors import InvalidInput, RunRefusal


class ScheduleNotFound(RunRefusal):
    """The project has no such schedule."""

    code = "schedule_not_found"
    status = 404


#: Names that differ in the API.
_API_NAMES = {"agent": "agent_id", "flow": "flow_id"}


class InvalidSchedule(InvalidInput):
    """A schedule is invalid. `data["pointer"]` is the JSON pointer of the field."""

    code = "invalid_schedule"

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message, pointer=f"/{_API_NAMES.get(field, field)}" if field else "")
        self.field = field
