"""`agentops project` and `agentops key`, called from Python and as separate processes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.utils import timezone

from agentops.accounts.access import SYSTEM
from agentops.accounts.command_base import AgentopsCommand, failure_of, operator, printable
from agentops.accounts.errors import AuthInvalid, ProjectNotFound
from agentops.accounts.keys import authenticate, create_key
from agentops.accounts.memberships import create_project
from agentops.accounts.models import ApiKey, AuditEntry, Project
from agentops.base.refusals import Conflict, Forbidden, Invalid, Refusal
from agentops.management.commands.key import Command
from timeline.models import LeaseLost


def run(*words: str) -> str:
    out = io.StringIO()
    call_command(*words, stdout=out)
    return out.getvalue()


# --- From Python ------------------------------------------------------------------------------------------------
def test_project_create_and_ls(db: None) -> None:
    assert run("project", "ls") == ""
    made = json.loads(run("project", "create", "ours", "--name", "Our project", "--json"))
    line = run("project", "create", "bare")

    bare = Project.objects.get(slug="bare")
    assert (made["slug"], made["name"], made["retention_days"]) == ("ours", "Our project", 90)
    assert line == f"bare\t{bare.pk}\tbare\n"
    assert run("project", "ls") == f"{line}ours\t{made['id']}\tOur project\n"
    assert [row["slug"] for row in json.loads(run("project", "ls", "--json"))] == ["bare", "ours"]
    assert set(AuditEntry.objects.values_list("actor", "door")) == {(operator(), "command")}


def test_the_limit_of_a_project_is_set_and_removed(project: Project) -> None:
    assert json.loads(run("project", "change", "alpha", "--max-running", "4", "--json"))["max_running"] == 4
    assert json.loads(run("project", "change", "alpha", "--name", "A", "--json"))["max_running"] == 4
    assert json.loads(run("project", "change", "alpha", "--max-running", "none", "--json"))["max_running"] is None
    for text in ("0", "-1", "1000001", "some"):
        with pytest.raises(CommandError, match="max-running"):
            run("project", "change", "alpha", "--max-running", text)


def test_key_create_prints_only_the_key(project: Project) -> None:
    plain = run("key", "create", "--project", "alpha", "--scopes", "read, write", "--expires", "90d")

    assert plain.endswith("\n")
    key = authenticate(plain.removesuffix("\n"))
    assert (key.project, key.scopes) == (project, ["read", "write"])
    assert abs(key.expires_at - timezone.now() - timedelta(days=90)) < timedelta(minutes=1)


def test_key_create_as_json(project: Project) -> None:
    made = json.loads(
        run("key", "create", "--project", str(project.pk), "--scopes", "ingest", "--name", "runner", "--json")
    )

    assert authenticate(made["key"]).prefix == made["prefix"]
    assert (made["name"], made["scopes"], made["expires_at"], made["state"]) == ("runner", ["ingest"], None, "active")


def test_key_ls_shows_everything_but_the_key(project: Project, foreign: Project) -> None:
    create_key(foreign, name="theirs", scopes=["read"], actor=SYSTEM)
    old = create_key(project, name="old", scopes=["read", "write"], actor=SYSTEM)
    new = create_key(project, name="new", scopes=["ingest"], expires_at=timezone.now() + timedelta(1), actor=SYSTEM)
    authenticate(old.plain)
    run("key", "revoke", old.key.prefix)

    lines = [line.split("\t") for line in run("key", "ls", "--project", "alpha").splitlines()]
    used = ApiKey.objects.get(pk=old.key.pk).last_used_at
    assert lines == [
        [new.key.prefix, "active", "ingest", f"{new.key.expires_at:%Y-%m-%dT%H:%MZ}", "-", "new"],
        [old.key.prefix, "revoked", "read,write", "-", f"{used:%Y-%m-%dT%H:%MZ}", "old"],
    ]
    rows = json.loads(run("key", "ls", "--project", "alpha", "--json"))
    assert [row["name"] for row in rows] == ["new", "old"]
    assert not any("sha256" in row or "key" in row for row in rows)


def test_key_revoke_by_prefix(project: Project) -> None:
    made = create_key(project, name="ci", scopes=["read"], actor=SYSTEM)

    assert run("key", "revoke", made.key.prefix[:12]) == f"revoked {made.key.prefix}\n"
    assert json.loads(run("key", "revoke", made.key.prefix, "--json"))["state"] == "revoked"
    assert AuditEntry.objects.filter(action="key.revoked").count() == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["project", "create", "alpha"], 5),
        (["project", "create", "Not A Slug"], 7),
        (["project", "create", "ours", "--name", ""], 7),
        (["key", "create", "--project", "nowhere", "--scopes", "read"], 3),
        (["key", "create", "--project", "alpha", "--scopes", "reed"], 7),
        (["key", "create", "--project", "alpha", "--scopes", "read", "--expires", "0d"], 7),
        (["key", "ls", "--project", "\udcff"], 3),
        (["key", "revoke", "aok_test_zzzz"], 3),
        (["key", "revoke", "aok_test_"], 4),
    ],
)
def test_errors_are_command_errors_when_called_from_python(words: list[str], code: int, project: Project) -> None:
    for name in "ab":
        create_key(project, name=name, scopes=["read"], actor=SYSTEM)

    with pytest.raises(CommandError) as refusal:
        run(*words)

    assert refusal.value.returncode == code


@pytest.mark.parametrize("span", ["90", "d", "-1d", "1y", "1.5d", "１d", "100000d", " 1d"])
def test_invalid_durations_are_refused(span: str, project: Project) -> None:
    with pytest.raises(CommandError, match="is not a duration"):
        run("key", "create", "--project", "alpha", "--scopes", "read", f"--expires={span}")


# --- Output and help --------------------------------------------------------------------------------------------
class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_columns(project: Project) -> None:
    out = Terminal()
    call_command("project", "ls", stdout=out)

    assert out.getvalue().splitlines() == ["SLUG   ID" + " " * 36 + "NAME", f"alpha  {project.pk}  Alpha"]


def test_columns_align_below_wide_characters_and_markup_is_text() -> None:
    out = Terminal()
    AgentopsCommand(stdout=out).write_table(["name", "state"], [("東京 [red]x", "\x1b[1mon"), ("e\u0301", "off")])

    assert out.getvalue().splitlines() == [
        "NAME         STATE",
        "東京 [red]x  \ufffd[1mon",
        "e\u0301            off",
    ]


def test_output_contains_no_terminal_control_characters() -> None:
    assert printable("a\x1b[2Jb\r\n\tc\x00\udcff é\x9b") == "a\ufffd[2Jb c\ufffd\ufffd é\ufffd"
    assert printable(None) == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProjectNotFound(), 3),
        (Conflict("taken", code="slug_taken"), 5),
        (Forbidden(), 5),
        (AuthInvalid(), 5),
        (Conflict(code="ambiguous_key"), 4),
        (Invalid(), 7),
        (Refusal("bad line"), 7),
        (Refusal(code="body_too_large", status=413), 7),
        (Refusal(code="run_expired", status=410), 3),
        (CommandError("no", returncode=9), 9),
        (OperationalError("no such table: x"), 6),
        # Bugs in the code keep their traceback.
        (LeaseLost("another worker has it"), None),
        (ValueError("x"), None),
    ],
)
def test_every_known_error_has_its_exit_code(error: Exception, code: int | None) -> None:
    failure = failure_of(error)

    assert (failure and failure.returncode) == code


def test_a_command_without_subcommands_behaves_as_in_django() -> None:
    class Plain(AgentopsCommand):
        def add_arguments(self, parser: Any) -> None:
            parser.add_argument("word")

        def handle(self, *args: Any, **options: Any) -> None:
            self.write_json({"word": options["word"]})

    out = io.StringIO()
    call_command(Plain(), "yes", stdout=out)

    assert json.loads(out.getvalue()) == {"word": "yes"}


def test_help_shows_only_the_options_of_agentops() -> None:
    text = Command().create_parser("agentops", "key").format_help()

    assert "revoke" in text
    assert "--settings" not in text
    assert "--traceback" not in text


# --- As a process -----------------------------------------------------------------------------------------------
def agentops(words: list[str], env: dict[str, str]) -> tuple[int, str, str]:
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_exit_codes_and_streams_of_a_process(process_env: dict[str, str]) -> None:
    project = create_project("ours", "Ours", actor=SYSTEM)
    for name in "ab":
        key = create_key(project, name=name, scopes=["read"], actor=SYSTEM).key
        ApiKey.objects.filter(pk=key.pk).update(prefix=f"aok_test_alike{name}")
    lines = [
        "key create --project ours --scopes read,write,ingest",
        "project create ours",
        "project create Ours",
        "key ls --project theirs",
        "key revoke aok_test_alike",
        "key",
    ]
    # Each spends seconds on imports, so they run in parallel.
    with ThreadPoolExecutor() as pool:
        made, *refused, usage = pool.map(lambda line: agentops(line.split(), process_env), lines)

    assert (made[0], made[2]) == (0, "")
    assert authenticate(made[1].removesuffix("\n")).project == project
    assert refused == [
        (5, "", "agentops: a project 'ours' already exists: choose another slug\n"),
        (7, "", "agentops: 'Ours' is not a valid slug: Use at most 63 lower-case letters, digits and dashes.\n"),
        (3, "", "agentops: project not found: 'theirs'\n"),
        (4, "", "agentops: 2 API keys begin with 'aok_test_alike': enter a longer prefix\n"),
    ]
    assert usage[:2] == (2, "")
    assert "Traceback" not in usage[2]


def test_a_database_without_tables_is_a_one_line_error(tmp_path: Any, process_env: dict[str, str]) -> None:
    env = process_env | {"DATABASE_URL": f"sqlite:///{tmp_path}/empty.sqlite3"}
    code, out, err = agentops(["project", "ls"], env)

    assert (code, out, err.count("\n")) == (6, "", 1)


@pytest.mark.slow
def test_a_closed_pipe_ends_the_command_quietly(process_env: dict[str, str]) -> None:
    Project.objects.bulk_create(Project(slug=f"p{n}", name="N" * 200) for n in range(1000))
    command = f"set -o pipefail; {sys.executable} {settings.BASE_DIR / 'manage.py'} project ls | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], env=process_env, capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (141, 1, "")
