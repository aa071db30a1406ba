"""Cells of CSV files are formulas in no spreadsheet, and only one module writes them."""

from __future__ import annotations

from agentops.base.http.csv_rows import csv_cell
from tests.support.machine import ROOT

SIGNS = "=+-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b\u2212"
BEFORE = (
    "",
    "\n",
    "\r",
    "\r\n",
    "\t",
    " ",
    "\x00",
    "\x0b",
    "\u00a0",
    "\u3000",
    "\u200b",
    "\ufeff",
    "\u2028",
    " \n \t ",
)


def test_no_cell_starts_a_formula() -> None:
    for before in BEFORE:
        for sign in SIGNS:
            text = f"{before}{sign}1+1"
            assert csv_cell(text) == f"'{text}", ascii(text)
    assert [csv_cell(f"{break_}x") for break_ in "\t\r\n"] == ["'\tx", "'\rx", "'\nx"]


def test_other_values_are_unchanged() -> None:
    values = ["a=1", "'=1", " a", "", "5-3", "é", "\u200bx", {"a": "="}, ["-"], -1, -1.5, True, None]
    cells = ["a=1", "'=1", " a", "", "5-3", "é", "\u200bx", '{"a": "="}', '["-"]', "-1", "-1.5", "true", ""]
    assert [csv_cell(value) for value in values] == cells


def test_one_module_writes_csv() -> None:
    paths = [path for package in ("agentops", "runs", "timeline") for path in (ROOT / package).rglob("*.py")]
    writing = {str(path.relative_to(ROOT)) for path in paths if "csv.writer" in path.read_text()}
    assert writing == {"agentops/base/http/csv_rows.py"}
