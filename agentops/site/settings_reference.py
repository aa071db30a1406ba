"""Descriptions of all settings, by group. With the defaults in settings.py they produce docs/reference/settings.md.

Separate from settings.py, because no process needs it at startup. `write_reference` refuses a setting without a
description.
"""

from __future__ import annotations

#: Group → variable → its description in Markdown, with units and limits.
GROUPS: dict[str, dict[str, str]] = {
    "Site and addresses": {
        "AGENTOPS_HOME": "Directory of the SQLite database and the secret key. It is created if missing. `agentops up` "
        "makes it private (mode 0700).",
        "PORT": "Port on 127.0.0.1 that `agentops up` listens on.",
        "ALLOWED_HOSTS": "Host names that the site answers to. `*` is accepted only together with `DEBUG`.",
        "SECRET_KEY": "Signing key of sessions, forms and cursors: at least 50 characters, the same for all processes. "
        "Without it, a key is created once and kept in `AGENTOPS_HOME`.",
        "AGENTOPS_ENCRYPTION_KEYS": "Keys of at least 32 characters, with commas between them, that encrypt the "
        "secrets of redaction rules. The first one encrypts; all of them and a key derived from `SECRET_KEY` decrypt. "
        "Without it, the derived key encrypts.",
        "AGENTOPS_BASE_URL": "Address under which people open the site, such as `https://agentops.example.org`. Links "
        "in e-mails begin with it. Required with `EMAIL_URL`.",
    },
    "Database and Redis": {
        "DATABASE_URL": "`postgresql://USER:PASSWORD@HOST/NAME` or `sqlite:///PATH`. Without it: a SQLite file in "
        "`AGENTOPS_HOME`.",
        "AGENTOPS_DB_POOL": "PostgreSQL: the largest number of connections of one process, at least 7 more than "
        "`AGENTOPS_CONCURRENCY`. 0 disables the pool and opens a connection for each use.",
        "AGENTOPS_DB_PROCESSES": "PostgreSQL: number of processes that have such a pool. Each process warns at its "
        "start if all pools together need more connections than the server allows.",
        "AGENTOPS_PROCESS_NAME": "PostgreSQL: `application_name` of the connections of this process.",
        "REDIS_URL": "`redis://…`, `rediss://…` or `unix://…`. Wakes workers and streams at once and counts requests "
        "for all processes together. Without it, workers and streams poll the database.",
        "AGENTOPS_CELERY_CONTROL": "Workers obey all commands of Celery's remote control, such as `celery control "
        "shutdown`. By default they answer only those that inspect: `active`, `active_queues`, `clock`, `ping`, "
        "`query_task`, `registered`, `reserved`, `revoked`, `scheduled` and `stats`.",
        "AGENTOPS_TASK_EVENTS": "Workers send the events of tasks, for monitors of Celery such as Flower, like "
        "`agentops worker --events`.",
    },
    "Workers": {
        "AGENTOPS_CONCURRENCY": "Runs that one worker advances at the same time.",
        "AGENTOPS_LEASE_S": "Seconds for which a run stays assigned to a worker that has stopped renewing its lease. "
        "Afterwards another worker takes the run.",
        "AGENTOPS_RENEW_S": "Seconds between two renewals of a lease, at most half of `AGENTOPS_LEASE_S`.",
        "AGENTOPS_SWEEP_S": "Seconds between two searches for runs that no worker has.",
        "AGENTOPS_GRACE_S": "Seconds that a worker may take to finish what it has begun after SIGTERM. `agentops up` "
        "waits at most 2 seconds.",
        "AGENTOPS_SLICE_S": "Seconds that a worker stays with one run while others wait. 0: one step, whether others "
        "wait or not.",
        "AGENTOPS_ALIVE_FILE": "Path of a file that a worker touches after each sweep. A file older than a minute "
        "means that the worker is stuck.",
    },
    "Runs": {
        "AGENTOPS_MAX_TOTAL_STEPS": "Limit of the steps of a run and all its predecessors together. A run that has "
        "reached it cannot be resumed or forked.",
        "AGENTOPS_MAX_CHILD_DEPTH": "Levels of child runs below a run; 0: no child runs. `max_child_depth` in an "
        "agent's settings can lower it.",
        "AGENTOPS_MAX_CHILDREN": "Child runs of one run. `max_children` in an agent's settings can lower it.",
        "AGENTOPS_MAX_RETRIES": "Immediate retries of a failed model call. `max_retries` in an agent's settings "
        "overrides it.",
        "AGENTOPS_TOOL_MAX_RETRIES": "Retries of a failed tool call, where the tool is safe to repeat. "
        "`tool_max_retries` in an agent's settings overrides it.",
        "AGENTOPS_RETRY_BASE_DELAY_MS": "Milliseconds before the first retry; each further one waits twice as long. "
        "`retry_base_delay_ms` in an agent's settings overrides it.",
        "AGENTOPS_OUTAGE_S": "Seconds that a run waits for a model provider that is down or overloaded before it "
        "pauses.",
    },
    "Agents, tools and policies": {
        "AGENTOPS_CLAUDE_CLI": "The path of Claude Code's program, for agents of the provider `claude_cli`. Empty: the "
        "provider is off. Set it for web processes and workers.",
        "AGENTOPS_TOOL_ROOTS": "Absolute paths of the directories below which agents may read files (`read_file`, "
        "`list_dir`). Without it these tools are off.",
        "AGENTOPS_WRITE_TOOLS": "Allow agents the tools `write_file` and `edit_file`, below their root.",
        "AGENTOPS_SHELL_TOOL": "Allow agents the tool `shell`, which runs commands in their root, in a sandbox.",
        "AGENTOPS_TOOL_MODULES": "Python modules whose tools agents may use, besides those of installed packages.",
        "AGENTOPS_PROVIDER_MODULES": "Python modules whose providers agents may name, besides those of installed "
        "packages.",
        "AGENTOPS_IMPORTER_MODULES": "Python modules whose formats can be imported, besides those of installed "
        "packages.",
        "AGENTOPS_MCP_SERVERS": "Path of a JSON file with the MCP servers whose tools agents may use.",
        "AGENTOPS_GATE_COMMANDS": "Programs that gates of policies may start: names on `PATH`, or absolute paths. "
        "Without it gates may use tools only.",
        "AGENTOPS_GATE_TIMEOUT_S": "Seconds that such a program may take.",
        "AGENTOPS_HOOK_MODULES": "Python modules whose hooks agents may use, besides those of installed packages.",
        "AGENTOPS_HOOKS": "Names of hooks that are called for every agent, before those of its definition.",
        "AGENTOPS_HOOK_TIMEOUT_S": "Seconds that a hook may take. A guard that takes longer denies the call.",
        "AGENTOPS_APPROVAL_EXPIRES_S": "Seconds after which an undecided approval expires, unless its rule says "
        "otherwise.",
        "AGENTOPS_ALERTS_S": "Seconds between two evaluations of the alert rules by a worker. The first message about "
        "an agent waits one and a half times as long for more of its runs.",
        "AGENTOPS_FIXTURES": "Directories with recordings that the `fixture` provider may play, besides those that are "
        "included.",
        "AGENTOPS_ALLOW_PRIVATE_SINKS": "Allow outgoing requests to private and loopback addresses too: of tools, of "
        "alerts, to sinks and webhooks, and to model servers that agents name.",
        "AGENTOPS_MODEL_KEYS": "API keys for model servers that agents name (`base_url`): `HOST=VARIABLE` or "
        "`HOST:PORT=VARIABLE`. The environment variable holds the key, and its name ends with `_KEY` or `_TOKEN`.",
    },
    "Web server": {
        "AGENTOPS_WEB_THREADS": "Requests that one web process works on at the same time. Streams need no thread.",
        "AGENTOPS_WEB_THREADS_PER_KEY": "Of these, how many requests with one API key, runner secret or browser "
        "session, so that a sender of many requests does not hold up the others. Its further requests wait.",
        "AGENTOPS_WEB_THREADS_PER_PROJECT": "How many with all API keys of one project, or with all sessions of one "
        "user, together. Requests whose key is not known yet share as many, and so do those of unknown sessions.",
        "AGENTOPS_HEADER_TIMEOUT_S": "Seconds that a client may take to send the headers of a request.",
        "AGENTOPS_BODY_TIMEOUT_S": "Seconds that a client may take to send the body. Later, the answer is 408.",
        "AGENTOPS_CONNECTIONS": "Connections that one web process keeps open, streams included; more than "
        "`AGENTOPS_STREAMS`. Beyond it, the answer is 503.",
        "AGENTOPS_CONNECTIONS_PER_ADDRESS": "Connections from one IPv4 address or one IPv6 /64 network. Proxies in "
        "`FORWARDED_ALLOW_IPS` are exempt.",
        "AGENTOPS_STREAMS": "Streams that one web process serves at the same time. Beyond it, the answer is 503.",
        "AGENTOPS_STREAMS_PER_USER": "Streams of one user or one API key in one web process.",
        "SSE_MAX_BUFFER": "Events that a stream reads from the database at a time. What is beyond it follows with "
        "the next read.",
    },
    "HTTPS and proxies": {
        "AGENTOPS_HTTPS": "The site is behind a proxy that speaks HTTPS: cookies are secure, HSTS is sent, plain HTTP "
        "is redirected.",
        "FORWARDED_ALLOW_IPS": "Proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are trusted: IP addresses, "
        "networks, or `*` where only a proxy can connect. Without it none is trusted. Required with `AGENTOPS_HTTPS`.",
        "AGENTOPS_HEALTH_TOKEN": "Token that lets clients other than loopback see the details of `/readyz`, sent as "
        "`Authorization: Bearer TOKEN`.",
    },
    "Request limits": {
        "AGENTOPS_RATE_KEY": "API requests per minute with one API key; 0 means no limit. With `REDIS_URL` all "
        "processes count together (a large limit may be exceeded by 1 % for each process), without it each by itself.",
        "AGENTOPS_RATE_USER": "API requests per minute of one user; 0 means no limit.",
        "AGENTOPS_RATE_ADDRESS": "API requests per minute from one address, with any credential or none; 0 means no "
        "limit. IPv6 addresses count by their /64 network.",
    },
    "Logins": {
        "AGENTOPS_LOGIN_ATTEMPTS": "Failed logins from one network in 15 minutes, under any user names; 0 means no "
        "limit. Browsers in which a user has logged in before are counted by themselves.",
        "AGENTOPS_LOGIN_IPV4_PREFIX": "Prefix length of an IPv4 network that counts as one for "
        "`AGENTOPS_LOGIN_ATTEMPTS`; 32 counts each address by itself.",
        "AGENTOPS_LOGIN_IPV6_PREFIX": "The same for IPv6.",
    },
    "Ingest": {
        "AGENT_RUNNER_SECRET": "Secrets of at least 16 characters, with commas between them, with which runners may "
        "send events instead of an API key. All are valid at once, so that one can replace another.",
        "AGENT_RUNNER_PROJECT": "Project of the events that are sent with such a secret.",
        "AGENT_EVENTS_INGEST_PATH": "Path below `/api/` at which events are received.",
        "AGENTOPS_RATE_INGEST": "Ingest requests per minute with one API key or with the secrets; 0 means no limit.",
        "AGENTOPS_RATE_RUN_EVENTS": "Events per minute of one run; 0 means no limit.",
        "AGENTOPS_API_KEY": "API key of another site, for `agentops watch --url` and `agentops mcp --url`.",
        "AGENTOPS_SILENCE_S": "Seconds without an event after which the runner of a running external run counts as "
        "silent. The run's log and page say so; it ends after `AGENTOPS_ABANDON_DAYS`.",
        "AGENTOPS_ABANDON_DAYS": "Days without an event or an import after which a run of another program that has not "
        "ended is stopped as `abandoned`; its next event reopens it. 0: such runs do not end by themselves.",
    },
    "Uploads": {
        "AGENTOPS_UPLOAD_MIB": "MiB of all files together that one request may upload for import, at most 64. Beyond "
        "it, the answer is 413.",
        "AGENTOPS_UPLOAD_TIMEOUT_S": "Seconds that a client may take to send an upload. Later, the answer is 408.",
        "AGENTOPS_IMPORT_MIB": "MiB that a file may expand to during its import: unpacked bytes, and the texts of all "
        "its runs and events; for a large file, twice its size. Beyond it, the import is refused with "
        "`import_too_large`.",
        "AGENTOPS_IMPORT_CPU_S": "Seconds of CPU time that reading a file may take, and then storing it; for a larger "
        "one, for each 64 MiB. Beyond it, the import is refused with `import_too_large`.",
    },
    "E-mail": {
        "EMAIL_URL": "Mail server for notifications: `smtp://`, `smtp+tls://` (STARTTLS) or `smtps://`, with "
        "`user:password@` if it requires a login. Without it notifications are shown on the site only.",
        "DEFAULT_FROM_EMAIL": "Sender of e-mails, such as `agentops <agentops@example.org>`. Required with "
        "`EMAIL_URL`.",
    },
    "Telemetry": {
        "LANGFUSE_PUBLIC_KEY": "Public key of a Langfuse project, to which the runs of all projects are sent. Required "
        "with `LANGFUSE_SECRET_KEY`.",
        "LANGFUSE_SECRET_KEY": "Secret key of that project.",
        "LANGFUSE_BASE_URL": "Address of Langfuse. Without it Langfuse Cloud in the EU, `https://cloud.langfuse.com`.",
        "LANGFUSE_HOST": "Older name of `LANGFUSE_BASE_URL`.",
        "AGENTOPS_TELEMETRY_LANGFUSE": "`otlp` for Langfuse 3 and newer, `batch` for older servers, `off` to send "
        "nothing in spite of the keys.",
        "AGENTOPS_TELEMETRY_OTLP_URL": "URL for traces by OTLP/HTTP, such as `https://collector.example.org/v1/traces`.",
        "AGENTOPS_TELEMETRY_OTLP_HEADERS": "Headers of these requests: `NAME=VALUE`, with commas between them.",
        "AGENTOPS_TELEMETRY_HTTP_URL": "URL for events as JSON.",
        "AGENTOPS_TELEMETRY_HTTP_HEADERS": "Headers of these requests: `NAME=VALUE`, with commas between them.",
        "AGENTOPS_TELEMETRY_DIALECT": "Names of events in both: `hooks`, such as `pre_tool_use`, or `log` for all "
        "events under the names of the log.",
        "AGENTOPS_TELEMETRY_JSONL": "Write events to files, one for each run, below `AGENTOPS_HOME/telemetry`.",
        "AGENTOPS_TELEMETRY_JSONL_DIR": "Absolute path of another directory for these files.",
        "AGENTOPS_TELEMETRY_ROOTS": "Directories below which the sinks of projects may write files.",
        "AGENTOPS_TELEMETRY_PORTS": "Ports of public hosts that sinks may send to, besides 443.",
        "AGENTOPS_SINK_MODULES": "Python modules whose kinds of sinks can be used, besides those of installed "
        "packages.",
        "AGENTOPS_METRICS_TOKEN": "Token with which `/metrics` may be read, sent as `Authorization: Bearer TOKEN`.",
        "AGENTOPS_METRICS_ALLOW": "Addresses and networks that may read `/metrics` without the token, besides "
        "loopback.",
    },
    "Logging and debugging": {
        "LOG_LEVEL": "The lowest level that is logged. The log goes to standard error.",
        "LOG_FORMAT": "`text`, or `json` for one JSON object a line.",
        "DEBUG": "Enables Django's debug pages. Never enable it on a site that others can reach.",
        "AGENTOPS_TESTING": "Set by the test suite: allows `AGENTOPS_CHAOS`, and new API keys contain `test`.",
        "AGENTOPS_CHAOS": "Tests only: the crash point and its hit at which the process ends as if killed, such as "
        "`turn.committed:1`; with `:RAISE` an error is raised instead.",
    },
}
