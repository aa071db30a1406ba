"""docs/reference/exit-codes.md: the exit codes of commands."""

from __future__ import annotations

from agentops import cli
from agentops.accounts.management import base
from agentops.reference.markdown import code, page, table

INTRODUCTION = """\
Every command ends with one of these codes. A code other than 0 comes with one line on standard error that says what is
wrong. With 1, the findings of the check or the status of the run are on standard output."""


def exit_codes_page() -> str:
    constants = {name: value for module in (base, cli) for name, value in vars(module).items() if name[:5] == "EXIT_"}
    for name, value in constants.items():
        if isinstance(value, int) and value not in base.EXIT_CODES:
            raise LookupError(f"{name} ({value}) has no meaning in EXIT_CODES")
    rows = [[code(str(number)), meaning] for number, meaning in sorted(base.EXIT_CODES.items())]
    return page("Exit codes", INTRODUCTION, table(["Code", "Meaning"], rows))
