"""Which errors say that the database cannot be written just now: the step waits and goes on, and nobody has died."""

from __future__ import annotations

from django.db import Error, InterfaceError, InternalError, OperationalError

#: What to catch; `pass_others_on` lets go of what was caught too much.
STORAGE = (OperationalError, InterfaceError, InternalError)
#: psycopg counts these among the internal errors: a standby, or a server that was told to write nothing; and the end of
#: a connection whose transaction stood idle, because this process was suspended in it.
READ_ONLY, STOOD_IDLE = "25006", "25P03"


def pass_others_on(error: Error) -> None:
    """Raise `error` again where it is an internal one of another kind: waiting would not mend that."""
    if isinstance(error, InternalError) and getattr(error.__cause__, "sqlstate", None) not in (READ_ONLY, STOOD_IDLE):
        raise error
