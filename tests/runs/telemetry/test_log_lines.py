"""The log of the processes: the expected messages at each level, with the run ID, as text or JSON."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from agentops.base.http.log_lines import JsonLine, LogLine
from agentops.site.computed_settings import logging_config
from tests.support.factories import drive, make_agent, make_project, make_run
from tests.support.project_rows import make_troubled_run

pytestmark = pytest.mark.django_db(transaction=True)


def lines_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "agentops.runs"]


def test_start_and_end_of_a_run_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run = drive(make_run())

    opened, ended = lines_of(caplog)
    assert (opened.levelname, opened.message) == ("INFO", "run opened")
    assert (ended.levelname, ended.message) == ("INFO", "run is completed")
    facts = vars(ended)
    assert (facts["run_id"], facts["agent"], facts["provider"]) == (str(run.pk), run.agent.slug, "fixture")
    assert (facts["input_tokens"], facts["output_tokens"]) == (run.input_tokens, run.output_tokens)
    assert facts["step_count"] == run.step_count


def test_turns_and_tools_are_debug_and_contain_no_content(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "agentops.runs")
    run = drive(make_run(make_agent(), "a prompt that is nobody's business"))

    debug = [record for record in lines_of(caplog) if record.levelname == "DEBUG"]
    calls = run.tool_calls.count()
    assert len(debug) == run.step_count + 2 * calls
    assert {vars(record)["run_id"] for record in debug} == {str(run.pk)}
    text = "\n".join(LogLine("%(message)s").format(record) for record in lines_of(caplog))
    assert "nobody's business" not in text
    assert "File has not been read yet" not in text


def test_a_failure_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run = make_troubled_run(make_project(), "failed")

    [line] = [record for record in lines_of(caplog) if record.levelname == "ERROR"]
    assert (line.message, vars(line)["run_id"]) == ("run is failed", str(run.pk))
    assert vars(line)["error_type"] == "network_error"


def record_of(message: str, **extra: Any) -> logging.LogRecord:
    return logging.getLogger("x").makeRecord("x", logging.INFO, "x.py", 1, message, (), None, extra=extra)


def test_a_json_line_is_one_object_without_secrets() -> None:
    token = "sk-ant-api03-" + "Ab1" * 31 + "AA"
    record = record_of(f'two\nlines "quoted" {token}', run_id="r-1", step=3, text=f"with {token}", none=None)

    line = JsonLine().format(record)
    document = json.loads(line)
    assert "\n" not in line
    assert token not in line
    assert (document["level"], document["run_id"], document["step"]) == ("INFO", "r-1", 3)
    assert "none" not in document
    assert logging_config("INFO", "json")["formatters"]["line"] == {"()": "agentops.base.http.log_lines.JsonLine"}


def test_facts_are_at_the_end_of_a_text_line() -> None:
    line = LogLine("%(levelname)s %(message)s").format(record_of("hello", run_id="r-1", reason='two words "x"\n'))

    assert line.partition(" request_id=")[0] == r'INFO hello run_id=r-1 reason="two words \"x\"\n"'
