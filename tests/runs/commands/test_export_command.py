"""`agentops export`: the same files as the page and the API, written to standard output, files and directories."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from agentops.accounts.models import Project
from runs.exports import list_files
from runs.models import AgentRun
from tests.support.command_line import MANAGE
from tests.support.factories import drive, make_agent, make_run, with_key

SECRET = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"


def export(*words: object) -> str:
    out = io.StringIO()
    call_command("export", *map(str, words), stdout=out)
    return out.getvalue()


def refusal(*words: object) -> tuple[int, str]:
    with pytest.raises(CommandError) as refused:
        export(*words)
    return refused.value.returncode, str(refused.value)


def answer(client: Client, url: str) -> str:
    return client.get(url).getvalue().decode()  # type: ignore[no-any-return, attr-defined]


@pytest.fixture
def reader(project: Project) -> Client:
    return Client(headers=with_key(project, "read"))


@pytest.fixture
def run(project: Project) -> AgentRun:
    run = drive(make_run(make_agent(project)))
    AgentRun.objects.filter(pk=run.pk).update(title=f"Grüße {SECRET}")
    return AgentRun.objects.get(pk=run.pk)


@pytest.mark.parametrize("file_format", ["json", "events", "messages", "tool-calls"])
def test_the_export_of_a_run_equals_the_file_of_the_api(file_format: str, run: AgentRun, reader: Client) -> None:
    text = export(str(run.pk)[:18], "--format", file_format)

    assert text == answer(reader, f"/api/projects/alpha/agent-runs/{run.pk}/export?format={file_format}")
    assert SECRET not in text
    assert export(run.pk) == export(run.pk, "--format", "json")


def test_the_html_export_equals_the_report_of_the_page(run: AgentRun, reader: Client) -> None:
    report = export(run.pk, "--format", "html")

    assert "Grüße [REDACTED" in report
    assert "<script" not in report
    assert report.startswith("<!doctype html>")


@pytest.mark.parametrize("file_format", ["jsonl", "csv"])
def test_the_export_of_the_list_equals_the_file_of_the_api(
    file_format: str, run: AgentRun, project: Project, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_files, "BATCH", 2)
    agent = make_agent(project)
    queued = [make_run(agent) for _ in range(5)]
    AgentRun.objects.filter(pk__in=[one.pk for one in queued[:3]]).update(labels=["nightly"])
    base = f"/api/projects/alpha/agent-runs/export?format={file_format}"

    whole = export("--project", "alpha", "--format", file_format)
    chosen = export(
        "--project",
        project.pk,
        "--status",
        "queued",
        "--status",
        "failed",
        "--label",
        "nightly",
        "--root",
        "--created-after",
        "2020-01-01T00:00:00Z",
        "--agent",
        agent.slug,
        "--format",
        file_format,
    )

    assert whole == answer(reader, base)
    assert chosen == answer(reader, f"{base}&status=queued,failed&label=nightly&root=1&agent={agent.slug}")
    rows = list(csv.DictReader(io.StringIO(chosen))) if file_format == "csv" else chosen.splitlines()
    assert len(rows) == 3
    assert export("--project", "alpha", "--cost-min", "0.1", "--cost-max", "2").count("\n") == 1
    assert json.loads(export("--project", "alpha", "--q", run.pk))["id"] == str(run.pk)


def test_exports_can_be_written_to_files_and_directories(run: AgentRun, tmp_path: Path) -> None:
    other = drive(make_run(make_agent(run.project)))
    one, folder = tmp_path / "one.json", tmp_path / "new" / "folder"

    assert export(run.pk, "--output", one) == ""
    assert export(run.pk, other.pk, str(run.pk)[:20], "--format", "events", "--output", folder) == ""
    assert export(run.pk, "--format", "html", "--output", folder) == ""
    assert export("--project", "alpha", "--output", folder) == ""

    assert one.read_text() == export(run.pk)
    names = [f"run-{each.pk}.events.jsonl" for each in (run, other)]
    assert sorted(os.listdir(folder)) == sorted([*names, f"run-{run.pk}.html", "runs-alpha.jsonl"])
    assert (folder / names[1]).read_text() == export(other.pk, "--format", "events")


def test_an_existing_file_is_replaced_only_with_force(run: AgentRun, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text("before")

    assert refusal(run.pk, "--output", path) == (5, f"{path} already exists; pass --force to overwrite it")
    assert path.read_text() == "before"
    export(run.pk, "--output", path, "--force")
    assert json.loads(path.read_text())["run"]["id"] == str(run.pk)
    assert os.listdir(tmp_path) == ["one.json"]


REFUSED = [
    (["--project", "alpha", "RUN"], 2, "not both"),
    (["RUN", "--cost-min", "1"], 2, "not both"),
    ([], 2, "name runs, or a project"),
    (["--status", "paused"], 2, "name runs, or a project"),
    (["RUN", "--format", "csv"], 2, "csv is a format of the list"),
    (["--project", "alpha", "--format", "html"], 2, "html is a format of runs"),
    (["RUN", "0000-0000"], 2, "several runs need --output"),
    (["--project", "nowhere"], 3, "project"),
    (["01a1f86c-1b1a-72f0-b808-0c8f1390c3f4"], 3, "run not found"),
    (["ffff"], 3, "run not found"),
    (["01a"], 4, "too short"),
    (["RUN", "--output", "/proc/none/file"], 6, "/proc/none"),
]


def test_invalid_exports_are_refused(run: AgentRun) -> None:
    for words, code, text in REFUSED:
        told = refusal(*(str(run.pk) if word == "RUN" else word for word in words))

        assert told[0] == code, words
        assert text in told[1], words


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--cost-min=x", "--cost-min: must be an amount in dollars such as 0.25, not 'x'"),
        ("--duration-max=1.5", "--duration-max: must be a whole number of seconds, not '1.5'"),
        ("--created-after=today", "--created-after: must be a time such as 2026-11-20T16:45 in UTC, not 'today'"),
        ("--status=ready", "--status: invalid choice"),
        (f"--source={SECRET}", "--source: must be one of native, remote, external, import, otlp, not '[REDACTED"),
    ],
)
def test_the_error_names_the_filter_with_an_invalid_value(option: str, text: str, project: Project) -> None:
    with pytest.raises(CommandError, match="argument") as refused:
        export("--project", "alpha", option)

    assert text in str(refused.value)
    assert SECRET not in str(refused.value)


def test_an_ambiguous_prefix_exits_with_4(run: AgentRun) -> None:
    make_run(make_agent(run.project))

    # IDs start with the time: IDs created within a few weeks share four digits.
    assert refusal(str(run.pk)[:4])[0] == 4


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_the_process_writes_utf8_and_has_the_documented_exit_codes(
    run: AgentRun, tmp_path: Path, process_env: dict[str, str]
) -> None:
    """The locale is ASCII; the outputs are a pipe that closes, a full device, and a file with a size limit."""
    env = {**process_env, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    path = tmp_path / "one.json"
    path.write_text("before")

    def ended(script: str, *words: str) -> subprocess.CompletedProcess[bytes]:
        command = ["bash", "-c", script, *MANAGE, "export", str(run.pk), *words]
        return subprocess.run(command, env=env, capture_output=True, timeout=120, check=False)

    done = ended('"$0" "$@"', "--format", "html")
    full = ended('"$0" "$@" >/dev/full')
    closed = ended('"$0" "$@" | true; echo ${PIPESTATUS[0]}')
    limited = ended('ulimit -f 1; exec "$0" "$@"', "--force", "--output", str(path))

    assert (done.returncode, done.stderr) == (0, b"")
    assert "Grüße [REDACTED" in done.stdout.decode()
    assert (full.returncode, full.stderr) == (6, b"agentops: standard output: No space left on device\n")
    assert closed.stdout == b"141\n"
    assert (limited.returncode, limited.stderr.decode()) == (6, f"agentops: {path}: File too large\n")
    assert (path.read_text(), os.listdir(tmp_path)) == ("before", ["one.json"])
