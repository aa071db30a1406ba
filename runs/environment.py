"""Takes secrets out of what the kernel and child processes see of this process's environment. Linux; elsewhere less.

`/proc/PID/environ` shows the memory in which a process was given its variables,
whatever was deleted since, so that memory is overwritten. Python keeps the values that libraries of model vendors read.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from pathlib import Path

#: Read once, when the settings are loaded: nobody needs them afterwards.
SETTINGS = frozenset(
    {
        "AGENT_RUNNER_SECRET",
        "AGENTOPS_HEALTH_TOKEN",
        "DATABASE_URL",
        "EMAIL_URL",
        "PGPASSWORD",
        "REDIS_URL",
        "SECRET_KEY",
    }
)
TELLING = re.compile(
    r"PASSWORD|PASSWD|PASSPHRASE|SECRET|(?:^|_)(?:API_?KEY|AUTH|CREDENTIALS?|DSN|KEY|PASS|PAT|PWD|TOKEN)S?(?:_|$)", re.I
)
CREDENTIALS_IN_URL = re.compile(r"[a-z][a-z0-9+.-]{0,30}://[^\s/@]{0,256}:[^\s/@]{1,1024}@", re.I)
#: Their names tell nothing here: the shell's directories.
PLAIN = frozenset({"OLDPWD", "PWD"})
#: The shortest value, in characters, that is looked for in what others say.
MIN_VALUE = 12
_SET_DUMPABLE = 4
# Of /proc/self/stat, counted after the name: where the given environment lies in memory.
_ENV_START, _ENV_END = 47, 48
#: What `hide_secrets` has taken out of os.environ.
_removed: dict[str, str] = {}


def is_secret(name: str, value: str) -> bool:
    """Whether a variable is one that no other process needs to see; a path to a secret is none."""
    if name in SETTINGS:
        return True
    if name in PLAIN or value.startswith("/"):
        return False
    return TELLING.search(name) is not None or CREDENTIALS_IN_URL.match(value) is not None


def hide_secrets() -> list[str]:
    """Hide them, for good, and give their names. Once the settings are loaded, before anything runs tools.

    Children that are started with no environment of their own inherit none of them, and other processes of the same
    user can neither read this one's memory nor trace it.
    """
    names = sorted(name for name, value in os.environ.items() if is_secret(name, value))
    for name in names:
        # os.environ still has it for Python; the environment that C and new processes see has not.
        os.unsetenv(name)
        if name in SETTINGS:
            _removed[name] = os.environ.pop(name)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError, IndexError):
            _overwrite({name.encode() for name in names})
        ctypes.CDLL(None, use_errno=True).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    return names


def for_own_process() -> tuple[dict[str, str], dict[str, str]]:
    """The variables for another process of this program: its environment, and apart from it the secrets, which must
    reach it on a way that others cannot read, such as a pipe."""
    variables = {**os.environ, **_removed}
    secrets = {name: value for name, value in variables.items() if is_secret(name, value)}
    return {name: value for name, value in variables.items() if name not in secrets}, secrets


def secret_values() -> frozenset[str]:
    """What the secret variables of this process hold. Short values are none: ordinary text has them too."""
    known = {**os.environ, **_removed}
    return frozenset(value for name, value in known.items() if len(value) >= MIN_VALUE and is_secret(name, value))


def _overwrite(names: set[bytes]) -> None:
    """Zeros for the values, in the memory that the kernel gave this process, and its forks, at its start."""
    fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    begin, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    if not 0 < begin < end:
        return
    at = begin
    for entry in ctypes.string_at(begin, end - begin).split(b"\0"):
        name, sign, value = entry.partition(b"=")
        if sign and name in names:
            ctypes.memset(at + len(name) + 1, 0, len(value))
        at += len(entry) + 1
