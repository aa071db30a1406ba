"""The database settings: SQLite in a file of the site, or PostgreSQL with a pool of connections."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from agentops.base.env import BadSetting

#: Connections that a worker needs in addition to one per run: for the run of a dead worker, upkeep, its leases, and
#: Celery's own threads.
SPARE = 7


def database_config(
    config: dict[str, Any], *, home: Path, process_name: str, lease_s: float, pool: int, concurrency: int
) -> dict[str, Any]:
    """Return Django's database settings. Raises `BadSetting`.

    `config`: the entry of DATABASE_URL; empty: a SQLite file in `home`. `lease_s`: seconds of a lease. `pool`:
    connections of a process, 0 for no pool. `concurrency`: runs of a worker.
    """
    config = config or {"ENGINE": "django.db.backends.sqlite3", "NAME": str(home / "agentops.sqlite3")}
    if config["ENGINE"].endswith("sqlite3"):
        return config | _sqlite(Path(config["NAME"]))
    return config | _postgresql(config, process_name, lease_s, pool, concurrency)


def _sqlite(path: Path) -> dict[str, Any]:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        text = f"DATABASE_URL must name a file in a directory that this user may write to ({error.strerror})"
        raise BadSetting(text) from None
    # IMMEDIATE: a transaction that reads first and writes later cannot fail half-way. FULL: an acknowledged commit
    # survives a power failure. recursive_triggers: REPLACE fires DELETE triggers.
    options = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA recursive_triggers=ON;",
    }
    return {"OPTIONS": options}


def _postgresql(
    config: dict[str, Any], process_name: str, lease_s: float, pool: int, concurrency: int
) -> dict[str, Any]:
    # A suspended process must not lock rows for longer than its lease. Waiting too long for a lock is an error that is
    # retried, not a hang.
    timeouts = f"-c idle_in_transaction_session_timeout={round(lease_s * 1000)} -c lock_timeout=5000"
    # PostgreSQL would JIT-compile statements that it expects to be expensive. That takes up to 0.3 s, more than they
    # run.
    options = {**config.get("OPTIONS", {}), "application_name": process_name, "options": f"{timeouts} -c jit=off"}
    if pool:
        if pool < concurrency + SPARE:
            raise BadSetting(f"AGENTOPS_DB_POOL must be at least {SPARE} more than AGENTOPS_CONCURRENCY")
        options["pool"] = {"min_size": 0, "max_size": pool, "timeout": 15}
    # The client library would read the password from the environment, which workers clear (runs/environment.py).
    password = config.get("PASSWORD") or os.environ.get("PGPASSWORD", "")
    # After a restart of the server every pooled connection is dead; this backend checks each before use.
    return {"ENGINE": "agentops.base.postgresql", "PASSWORD": password, "OPTIONS": options}
