"""Whether this machine can confine commands. If it cannot, the tool `shell` runs nothing, and says why."""

from __future__ import annotations

import os
import tempfile
from functools import cache

from runs.tools.sandbox import sandboxed_command

#: A user without rights, for the trial of a worker that is root.
NOBODY = 65_534


@cache
def why_unavailable() -> str:
    """Return why no command can run in a sandbox here, as a sentence; empty if one can. Tries it once per process."""
    with tempfile.TemporaryDirectory(prefix="agentops-trial-") as root:
        if os.geteuid() == 0:
            os.chown(root, NOBODY, NOBODY)
        root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            ended = sandboxed_command.run(
                ["/bin/sh", "-c", ":"], root_fd, timeout_s=30, write=lambda *_: None, cancelled=lambda: False
            )
        except sandboxed_command.NoSandbox as error:
            return f"{error.reason[:1].upper()}{error.reason[1:]}."
        finally:
            os.close(root_fd)
    return f"A command that does nothing failed: {ended.output or ended.reason}." if ended.code else ""
