"""Compares the records of the newest client programs with the ledger of a scripted model server: `make newest`.

python -m tests.newest [NAME…] [--write] [--keep-versions]

Prints a table. The exit code is 1 if a figure differs, or if a program cannot be installed or run. `--write` updates
the table in docs/guides/client-programs.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.newest.clients import CLIENTS, ClientProgram, Installation
from tests.newest.comparison import Report, Row, report_of, table
from tests.newest.model_server import ModelServer, serving
from tests.newest.programs import task
from tests.support.command_line import Site
from tests.support.machine import ROOT

if TYPE_CHECKING:
    from tests.newest.site_runs import Recorder

PAGE = ROOT / "docs/guides/client-programs.md"
BEGIN, END = "<!-- table: make newest -->", "<!-- end of the table -->"
#: The first part of the path of the site's own model calls.
SITE = "site"


def main(arguments: Sequence[str]) -> int:
    """Run the programs, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.newest", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs whose name has this prefix (default: all)")
    parser.add_argument("--write", action="store_true", help="update the table in the documentation")
    parser.add_argument("--keep-versions", action="store_true", help="use the packages that are installed")
    parser.add_argument("--directory", type=Path, default=ROOT / ".venv/newest", help="where packages are installed")
    options = parser.parse_args(arguments)
    chosen = [one for one in CLIENTS if not options.names or one.name.startswith(tuple(options.names))]
    if not chosen:
        parser.error(f"no program has such a name: {', '.join(one.name for one in CLIENTS)}")
    installation = Installation(options.directory)
    uninstalled = {} if options.keep_versions else _install(installation, chosen)
    with tempfile.TemporaryDirectory(prefix="agentops-newest-") as home, serving() as models:
        rows = _run_all(chosen, installation, uninstalled, models, Path(home) / "site")
    print(table(rows))
    failures = [f"{row.title}: {text}" for row in rows for text in ([row.failure] if row.failure else row.faults)]
    print("\n".join([*failures, f"{len(rows)} programs, {len(failures)} faults"]), file=sys.stderr)
    if options.write and not options.names and not failures:
        _write(table(rows))
    return 1 if failures else 0


def _install(installation: Installation, programs: Sequence[ClientProgram]) -> dict[str, str]:
    """Install the packages of all files. Return why a file's packages cannot be installed, by file."""
    failures = {}
    for script in dict.fromkeys(program.script for program in programs):
        print(f"installing the newest packages of {script}", file=sys.stderr)
        try:
            installation.install(script)
        except RuntimeError as error:
            failures["node" if script.endswith(".mjs") else script] = str(error)
    return failures


def _run_all(
    programs: Sequence[ClientProgram],
    installation: Installation,
    uninstalled: dict[str, str],
    models: ModelServer,
    home: Path,
) -> list[Row]:
    """Start a site, run the programs one after the other, and return their rows when the site has filed all spans."""
    os.environ |= {"AGENTOPS_HOME": str(home), "DJANGO_SETTINGS_MODULE": "agentops.settings", "LOG_LEVEL": "ERROR"}
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    site = Site(home).up(
        ANTHROPIC_BASE_URL=f"{models.url}/{SITE}",
        ANTHROPIC_API_KEY="none",
        AGENTOPS_TOOL_MODULES="tests.newest.site_tools",
        PYTHONPATH=str(ROOT),
        AGENTOPS_RATE_INGEST="0",
    )
    try:
        return _with_site(site, programs, installation, uninstalled, models)
    finally:
        site.kill()


def _with_site(
    site: Site,
    programs: Sequence[ClientProgram],
    installation: Installation,
    uninstalled: dict[str, str],
    models: ModelServer,
) -> list[Row]:
    import django

    django.setup()
    from tests.newest.site_runs import Recorder

    started: list[tuple[ClientProgram, Recorder, str, str]] = []
    for program in programs:
        recorder = Recorder.create(site, program.name)
        failure = uninstalled.get("node" if program.script.endswith(".mjs") else program.script, "")
        output = ""
        if not failure:
            print(f"running {program.name}", file=sys.stderr)
            output, failure = _run(program, recorder, installation, models)
        started.append((program, recorder, output, failure))
    rows = []
    for program, recorder, output, failure in started:
        served = _served(program, models)
        if failure or not served:
            text = failure or "it has not called the model server"
            rows.append(Row(program.title, "", Report(), Report(), program.unsent, text))
            continue
        if not program.reads:
            recorder.wait()
        shown = _report(output) if program.reads else recorder.report()
        versions = installation.versions(program)
        rows.append(Row(program.title, versions, report_of(served), shown, program.unsent))
    return rows


def _run(
    program: ClientProgram, recorder: Recorder, installation: Installation, models: ModelServer
) -> tuple[str, str]:
    """Run a program, and return its output and why it failed; one of them is empty."""
    url = f"{models.url}/{program.name}"
    env = {
        **recorder.variables(),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "none",
        "GOOGLE_GEMINI_BASE_URL": url,
        "GOOGLE_API_KEY": "none",
        "SYSTEM": task.SYSTEM,
        "PROMPT": _prompt(program),
        "CLAUDE": task.CLAUDE,
        "GPT": task.GPT,
    }
    if program.reads:
        recorder.make_agent()
        if program.name != "ag-ui":
            env["RUN_ID"] = _start_run(recorder, env["PROMPT"])
    done = installation.run(program, env)
    return done.stdout, f"exit {done.returncode}: {done.stderr[-1500:]}" if done.returncode else ""


def _prompt(program: ClientProgram) -> str:
    """Return the prompt. It identifies the programs that run the site's own agent."""
    return f"{task.PROMPT} ({program.name})" if program.reads else task.PROMPT


def _start_run(recorder: Recorder, prompt: str) -> str:
    """Start a run of the site's agent, and return its ID when it has ended."""
    base = f"{recorder.site.url}/api/projects/{recorder.project.slug}/agent-runs"
    headers = {"Authorization": f"Bearer {recorder.key}"}
    answer = httpx.post(base, json={"agent_id": "weather", "prompt": prompt}, headers=headers)
    assert answer.status_code == 201, answer.text
    run_id = str(answer.json()["id"])
    with httpx.stream("GET", f"{base}/{run_id}/events/stream", headers=headers, timeout=60) as stream:
        for line in stream.iter_lines():
            if line == "event: end":
                break
    return run_id


def _served(program: ClientProgram, models: ModelServer) -> list[Any]:
    if not program.reads:
        return models.served(program.name)
    prompt = ("user", _prompt(program))
    return [entry for entry in models.served(SITE) if prompt in entry.conversation.messages]


def _report(output: str) -> Report:
    """Return the output of a program that reads a run."""
    shown = json.loads(output)
    messages = [(role, text) for role, text in shown["messages"]] if "messages" in shown else None
    systems = {text for role, text in messages or () if role == "system"}
    return Report(
        model_calls=shown.get("model_calls"),
        messages=messages and [message for message in messages if message[0] != "system"],
        system_messages=len(systems) or None,
        tool_calls=shown["tool_calls"],
        tokens=shown["tokens"],
        cost=None if "cost" not in shown else Decimal(shown["cost"]),
    )


def _write(text: str) -> None:
    """Replace the table in the documentation, and its date."""
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    date = datetime.now(UTC).date().isoformat()
    PAGE.write_text(f"{before}{BEGIN}\n\nRun on {date}.\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
