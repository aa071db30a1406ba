"""Secrets of every kind, alone, in texts and in rows; and texts that only look as if they had one.

Random, but the same every time. The samples of `TRUE` and `FALSE` share no code with the product.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import random
import re
import string
import uuid
from collections.abc import Callable
from urllib.parse import quote, quote_plus

from django.db import transaction

from agentops.accounts import redaction_changes
from agentops.accounts.models import Project
from agentops.accounts.redaction_cache import CACHE
from agentops.base.redaction.token_grammar import ALPHABETS, Part, VendorFormat
from runs.models import AgentRun, AgentRunMessage
from timeline import log
from timeline.events.notice import Error
from timeline.log import Entry
from timeline.models import Source

RNG = random.Random(20)
ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
B64URL = ALNUM + "-_"


def pick(alphabet: str, count: int) -> str:
    """Return random characters with at least one digit and one letter, like every real key."""
    while True:
        made = "".join(RNG.choices(alphabet, k=count))
        if any(c.isdigit() for c in made) and any(c.isalpha() for c in made) and made[-1] not in "-_":
            return made


def jwt() -> str:
    parts = [{"alg": "HS256", "typ": "JWT"}, {"sub": pick(ALNUM, 12), "iat": RNG.randrange(10**9)}]
    head = [base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts]
    return ".".join([*head, pick(B64URL, 43)])


def pem(label: str, gap: str = "\n") -> str:
    body = base64.b64encode(RNG.randbytes(1200)).decode()
    lines = [body[i : i + 64] for i in range(0, len(body), 64)]
    return gap.join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----"])


TOKENS: dict[str, Callable[[], str]] = {
    "openai": lambda: "sk-" + pick(ALNUM, 48),
    "openai_project": lambda: "sk-proj-" + pick(B64URL, 120),
    "anthropic": lambda: "sk-ant-api03-" + pick(B64URL, 93),
    "langfuse_secret": lambda: f"sk-lf-{uuid.UUID(int=RNG.getrandbits(128))}",
    "langfuse_public": lambda: f"pk-lf-{uuid.UUID(int=RNG.getrandbits(128))}",
    "github": lambda: RNG.choice(["ghp_", "gho_", "ghs_", "ghu_", "ghr_"]) + pick(ALNUM, 36),
    "github_pat": lambda: f"github_pat_{pick(ALNUM, 22)}_{pick(ALNUM, 59)}",
    "gitlab": lambda: "glpat-" + pick(B64URL, 20),
    "slack": lambda: f"xox{RNG.choice('abprs')}-{RNG.randrange(10**11)}-{RNG.randrange(10**12)}-{pick(ALNUM, 24)}",
    "aws": lambda: RNG.choice(["AKIA", "ASIA"]) + pick(string.ascii_uppercase + string.digits, 16),
    "google": lambda: "AIza" + pick(B64URL, 35),
    "stripe": lambda: RNG.choice(["sk_live_", "rk_live_", "sk_test_"]) + pick(ALNUM, 24),
    "npm": lambda: "npm_" + pick(ALNUM, 36),
    "sendgrid": lambda: f"SG.{pick(B64URL, 22)}.{pick(B64URL, 43)}",
    "hugging_face": lambda: "hf_" + pick(ALNUM, 34),
    "twilio": lambda: "SK" + pick(HEX, 32),
    "digitalocean": lambda: RNG.choice(["dop_v1_", "doo_v1_", "dor_v1_"]) + pick(HEX, 64),
    "pypi": lambda: "pypi-AgEIcHlwaS5vcmc" + pick(B64URL, 120),
    "telegram": lambda: f"AA{pick(B64URL, 33)}",
    "shopify": lambda: "shpat_" + pick(HEX, 32),
    "linear": lambda: "lin_api_" + pick(ALNUM, 40),
    "grafana": lambda: f"glsa_{pick(ALNUM, 32)}_{pick(HEX, 8)}",
    "gitlab_runner": lambda: "glrt-" + pick(B64URL, 20),
    "jwt": jwt,
    "agentops": lambda: "aok_" + pick(B64URL, 40),
}
SETTINGS: dict[str, Callable[[], tuple[str, str]]] = {
    "bearer": lambda: _around("Authorization: Bearer {}", pick(B64URL, 32)),
    "bearer_alone": lambda: _around("curl -H 'authorization:bearer {}'", pick(B64URL, 24)),
    "bearer_json": lambda: _around('{{"headers": {{"Authorization": "Bearer {}"}}}}', pick(B64URL, 24)),
    "basic": lambda: _around("Authorization: Basic {}", base64.b64encode(f"ada:{pick(ALNUM, 10)}".encode()).decode()),
    "url": lambda: _around("postgres://app:{}@db.internal:5432/app", pick(ALNUM + "!$%*", 12)),
    "redis": lambda: _around("redis://:{}@cache:6379/0", pick(ALNUM, 12)),
    "password_tight": lambda: _around("password={}", pick(ALNUM, 10)),
    "password_env": lambda: _around("DB_PASSWORD={}", pick(ALNUM + "!#%", 14)),
    "password_json": lambda: _around('"password": "{}"', pick(ALNUM + "!#%", 12)),
    "password_escaped": lambda: _around('{{\\"password\\": \\"{}\\"}}', pick(ALNUM, 12)),
    "password_yaml": lambda: _around("password: {}", pick(ALNUM, 12)),
    "password_url": lambda: _around("/login?user=ada&password={}&next=home", pick(ALNUM, 12)),
    "password_flag": lambda: _around("mysql --password {} -h db", pick(ALNUM, 12)),
    "smtp_pass": lambda: _around("SMTP_PASS='{}'", pick(ALNUM, 12)),
    "api_key_env": lambda: _around("export SERVICE_API_KEY={}", pick(ALNUM, 32)),
    "api_key_json": lambda: _around('{{"apiKey": "{}"}}', pick(ALNUM, 32)),
    "aws_secret": lambda: _around("aws_secret_access_key = {}", "k" + pick(ALNUM + "/+", 38) + "Z"),
    "client_secret": lambda: _around('client_secret: "{}"', pick(ALNUM, 24)),
    "token_env": lambda: _around("NPM_TOKEN={}", pick(ALNUM, 36)),
    "curl_user": lambda: _around("curl -s -u ada:{} https://api.example/v1/me", pick(ALNUM, 12)),
    "curl_user_quoted": lambda: _around('curl --user "ada:{}" -o out.json https://api.example', pick(ALNUM, 12)),
    "mysql": lambda: _around("mysql -h db -u root -p{} shop < dump.sql", pick(ALNUM, 12)),
    "sshpass": lambda: _around("sshpass -p {} ssh ada@host uptime", pick(ALNUM, 12)),
    "cookie": lambda: _around("Cookie: theme=dark; sessionid={}; lang=en", pick(ALNUM, 32)),
    "set_cookie": lambda: _around("< Set-Cookie: sid={}; Path=/; HttpOnly", pick(ALNUM, 26)),
    "netrc": lambda: _around("machine api.example login ada password {}", pick(ALNUM, 12)),
    "netrc_lines": lambda: _around("machine api.example\n  login ada\n  password {}\n", pick(ALNUM, 12)),
    "pair": lambda: _around('{{"name": "password", "value": "{}"}}', pick(ALNUM, 12)),
    "pair_escaped": lambda: _around('{{\\"name\\":\\"api_key\\",\\"value\\":\\"{}\\"}}', pick(ALNUM, 24)),
    "slack_webhook": lambda: _around(
        "https://hooks.slack.com/services/T0{}", f"{pick(ALNUM, 8)}/B0{pick(ALNUM, 8)}/{pick(ALNUM, 24)}"
    ),
    "slack_webhook_escaped": lambda: _around(
        '{{"url": "https:\\/\\/hooks.slack.com\\/services\\/{}"}}',
        f"T0{pick(ALNUM, 8)}\\/B0{pick(ALNUM, 8)}\\/{pick(ALNUM, 24)}",
    ),
    "discord_webhook": lambda: _around(
        f"https://discord.com/api/webhooks/{RNG.randrange(10**17, 10**18)}/{{}}", pick(B64URL, 68)
    ),
    "teams_webhook": lambda: _around(
        "https://acme.webhook.office.com/webhookb2/{}",
        f"{_uuid()}@{_uuid()}/IncomingWebhook/{pick(HEX, 32)}/{_uuid()}",
    ),
    "zapier_webhook": lambda: _around(
        "https://hooks.zapier.com/hooks/catch/{}", f"{RNG.randrange(10**7)}/{pick(HEX, 7)}"
    ),
    "azure_signature": lambda: _around(
        "https://acme.blob.core.windows.net/x?sv=2024-11-04&sp=r&sig={}", quote(_base64(32), safe="")
    ),
    "amazon_signature": lambda: _around("https://s3.amazonaws.com/x?X-Amz-Signature={}&X-Amz-Expires=9", pick(HEX, 64)),
    "site_link": lambda: _around("open https://agents.example/shared/{} soon", f"{pick(HEX, 32)}:{pick(B64URL, 43)}"),
    "invitation": lambda: _around("/invitations/{}", f"{pick(B64URL, 46)}:1t{pick(ALNUM, 4)}:{pick(B64URL, 43)}"),
    "discord_bot": lambda: _around("DISCORD_TOKEN={}", f"M{pick(ALNUM, 25)}.G{pick(ALNUM, 5)}.{pick(B64URL, 38)}"),
    "encryption_keys": lambda: _around("AGENTOPS_ENCRYPTION_KEYS={}", pick(B64URL, 43)),
    "session": lambda: _around(
        "curl -b 'sessionid={}' https://api.example", pick(string.ascii_lowercase + "0123456789", 32)
    ),
    "kubeconfig": lambda: _around("    client-key-data: {}", _base64(1200)),
    "docker_config": lambda: _around('{{"auths": {{"https://index.docker.io/v1/": {{"auth": "{}"}}}}}}', _basic()),
    "npmrc_auth": lambda: _around("//registry.example/:_auth={}", _basic()),
    "sql_identified": lambda: _around("CREATE USER 'ada'@'%' IDENTIFIED BY '{}';", pick(ALNUM, 12)),
    "sql_plugin": lambda: _around("ALTER USER ada IDENTIFIED WITH caching_sha2_password BY '{}'", pick(ALNUM, 12)),
    "sql_role": lambda: _around("ALTER ROLE app WITH LOGIN PASSWORD '{}';", pick(ALNUM, 12)),
    "sql_function": lambda: _around("SET PASSWORD FOR 'ada'@'h' = PASSWORD('{}');", pick(ALNUM, 12)),
    "sql_set": lambda: _around("SET PASSWORD FOR 'ada'@'h' = '{}';", pick(ALNUM, 12)),
    "htpasswd": lambda: _around("htpasswd -bc .htpasswd ada {}", pick(ALNUM, 12)),
    "htpasswd_shown": lambda: _around("docker run --rm httpd htpasswd -Bbn ada {} > auth", pick(ALNUM, 12)),
    "openssl": lambda: _around("openssl rsa -in key.pem -passin pass:{} -out plain.pem", pick(ALNUM, 12)),
    "token_url": lambda: _around("https://x.example/hook?access_token={}", pick(ALNUM, 36)),
}
FRAMES: list[str] = [
    "{}",
    "The agent printed {} and went on.",
    "first line\n{}\nlast line",
    "(see {})",
    "Überprüfung → {} 😀",
]
TOKEN_FRAMES: list[str] = [
    *FRAMES,
    "KEY={}",
    'export X="{}"',
    '{{"value": "{}"}}',
    "line\\n{}\\nnext",
    "https://x.example/?k={}&a=1",
    "https://x.example/%3D{}%26",
    "a,{},b",
    "{}.",
]


def _around(frame: str, value: str) -> tuple[str, str]:
    return frame.format(value), value


def _uuid() -> str:
    return str(uuid.UUID(int=RNG.getrandbits(128)))


def _base64(size: int) -> str:
    return base64.b64encode(RNG.randbytes(size)).decode()


def _basic() -> str:
    return base64.b64encode(f"ada:{pick(ALNUM, 16)}".encode()).decode()


def _true_samples() -> list[tuple[str, str, str]]:
    samples = []
    for name, make in TOKENS.items():
        for frame in TOKEN_FRAMES * 3:
            token = make()
            shown = f"{RNG.randrange(10**9)}:{token}" if name == "telegram" else token
            samples.append((name, frame.format(shown), token))
    for name, make_setting in SETTINGS.items():
        for frame in FRAMES * 3:
            line, value = make_setting()
            samples.append((name, frame.format(line), value))
    for label in ("RSA PRIVATE KEY", "PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY"):
        for frame in FRAMES:
            for gap in ("\n", "\\n", "\r\n"):
                key = pem(label, gap)
                samples.append((label, frame.format(key), key.split(gap)[7]))
                cut = key[: RNG.randrange(200, 900)]
                samples.append((f"{label} cut", frame.format(cut), key.split(gap)[1]))
    return samples


TRUE = _true_samples()
PROSE = [
    "The password must be at least 8 characters long.",
    "Password: required",
    '{"errors": {"password": ["This field is required."], "token": "invalid"}}',
    '{"password": "This password is too short."}',
    "Enter your password: ",
    'password = getpass.getpass("Password: ")',
    "def login(user: str, password: str = None) -> Token:",
    "login(user=user, password=password)",
    "password = request.POST.get('password1')",
    "password=settings.DB.password",
    'password = os.environ["DB_PASSWORD"]',
    "DB_PASSWORD=${DB_PASSWORD}",
    "PASSWORD=$1",
    "password: {{ vault.password }}",
    "password: <your password>",
    "password=********",
    'url = "https://x/?password=" + quote(password) + "&user=" + user',
    'print("password:", password)',
    "pwd=/home/ada/projects/app",
    "mysql --password --host db.internal",
    "$ pwd\n/home/ada",
    "The tests pass: 12 of 12",
    "pass: 12, fail: 0",
    "token_count: 4096, max_tokens=8192, tokens: 17",
    '{"token": " the", "logprob": -0.1234567}',
    'next_page_token: "CAUQAA1234567890abcdef"',
    "token = tokenizer.next_token_v2(stream)",
    "token: the smallest unit of text",
    "secret: /run/secrets/db_password_1",
    "secretName: my-tls-secret-2",
    "primary_key=True, foreign_key='users.id', cache_key='run:12:detail:v3'",
    "key: value, keys: [a1, b2]",
    "api_key = config.get_api_key_v2()",
    "api_key = settings.api_key_2",
    'OPENAI_API_KEY="sk-..."',
    "Authorization: required for every request",
    "Authorization: Bearer <token>",
    "Authorization: Bearer YOUR_TOKEN",
    "Authorization: Bearer $TOKEN",
    "Bearer authentication is described in RFC 6750",
    "Basic authentication is described in RFC 7617",
    "Basic programming skills: none needed",
    "from sklearn: sk-estimator-doc-link-container, sk-toggleable__content-arrow",
    "the task-sk-learn-contrib-imbalanced-learn-2 package",
    "risk-adjusted-returns-of-2024-and-2025-compared",
    "https://example.com:8080/path?email=ada@example.com",
    "http://localhost:8000/a@b",
    "git@github.com:acme/app.git and ssh://git@github.com/acme/app.git",
    "postgres://app:${DB_PASSWORD}@db/app",
    'Look for "-----BEGIN PRIVATE KEY-----" and "-----END PRIVATE KEY-----" in the file.',
    "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADB\n-----END CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----\nMFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBAKj34GkxFhD90vcN\n-----END PUBLIC KEY-----",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Q2l8eVJkY3Jqb2Zpd2Z4eHl6MTIz ada@laptop",
    "AKIA is a prefix, ASIA another, AIza a third, ghp_ a fourth",
    "eyJ starts base64 of an object",
    '"integrity": "sha512-' + base64.b64encode(bytes(range(64))).decode() + '"',
    "GET /api/projects/demo/agent-runs?limit=50&cursor=cD0yMDI1LTAxLTAx HTTP/1.1",
    "Set max_steps to 50 and on_idle to nudge; attempts: forever, cooldown: 60s",
    "curl -u and --user take a name and a password; curl -u $USER:$PASSWORD https://x",
    "curl -s -o out.json -w '%{http_code}' http://localhost:8000/healthz:80",
    "mysql -u root -p shop, then type it; docker run -p 8080:80 nginx; mkdir -p /tmp/a1; ssh -p 2222 host",
    "Set-Cookie is a header; Cookie: a small text that a site keeps; cookies=None; cookie = jar.get('sid')",
    'SESSION_COOKIE_NAME = "sessionid"; CSRF_COOKIE_SECURE=True; response.set_cookie("theme", "dark")',
    "machine learning needs no login; the login page asks for a password twice",
    '{"name": "password", "value": ""}, {"name": "password", "type": "string"}, {"name": "limit", "value": "50"}',
    "npm_config_registry, npm_lifecycle_event, npm_package_version; hf_transfer, hf_hub_download_with_retries",
    "sk_test_mode, SK-1234, SG.txt, AAA_battery, pypi-publish-action, glrt-runner, API-Documentation-Reference",
    "claude-opus-4-1-20250805 and gpt-4o-mini-2024-07-18; by key:aok_live_0123456789aB",
    "12:AA34 in hex, aa:bb:cc:dd:ee:ff, 10:AAPL, ratio 3:AAAA",
    "CREATE USER ada IDENTIFIED BY PASSWORD; the user is identified by 'name', the role by its password",
    "ALTER ROLE app WITH PASSWORD :password; SET PASSWORD FOR ada; SELECT password('x') FROM users",
    "htpasswd -c .htpasswd ada asks twice; the htpasswd file; use htpasswd -bc FILE USER $PASSWORD",
    '{"auth": "basic", "auth": "required1", "_auth": true}, auth = None, client-key-data: REDACTED',
    "https://github.com/acme/app/settings/webhooks, POST /api/webhooks/new and /hooks/catch, /shared/lib/v2/index.js",
    "config=abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH, ?design=blue&sig=short1, X-Signature=none",
    "/approvals/3f2c1a9e-8c7b-4d6e-9f10-2a3b4c5d6e7f, https://hooks.slack.com/services/T000/B000/XXXX",
    "sk-learn_estimator_html_repr_with_a_long_name_2, gsk_test_mode, xai-explainability-2024-workshop",
    "hvs.module.attribute_name_of_an_object, dp.state.value_of_a_field_2, sl.get_all_items_of_list_1()",
    "pattern_of_words_2, path.join2(a), patch-2024-01-02-fix-all-of-the-things, keyboard_layout_of_2024_de",
    "re_compile_all_patterns_2, key_error_in_line_42_of_file, fc-cache-2.13, pa-per-2024-final-version-2",
    "whsec_ is a prefix, lsv2_pt_ another, ghp_xxxxxxxxxxxxxxxxxxxx a placeholder",
    "api_keys: a list, keys=3, sessionid=none, session_id=abc123, api_key = config2.providers.getKeyOfProvider2",
    "secret santa, token ring, keyboard, monkey=banana1, turkey: 12kg",
]


def _false_samples() -> list[str]:
    samples = list(PROSE)
    for _ in range(40):
        data = RNG.randbytes(400)
        samples += [
            f"commit {hashlib.sha1(data).hexdigest()}",
            f"sha256:{hashlib.sha256(data).hexdigest()}",
            f"run_id={uuid.UUID(bytes=data[:16])}",
            f"data:image/png;base64,{base64.b64encode(data).decode()}",
            base64.urlsafe_b64encode(data).decode(),
            f'{{"id": "call_{pick(ALNUM, 24)}", "type": "function"}}',
            f"request req_{pick(ALNUM, 24)} took {RNG.random():.6f}s",
        ]
    return samples


FALSE = _false_samples()


MARK = r"\[REDACTED:[a-z0-9_]{1,32}:[0-9a-f]{8}\]"
#: Frames with {} for the token: alone, at the start and end, in JSON, settings, URLs and commands; with escapes.
PRINTED_FRAMES = (
    "{}",
    "{} is what it printed.",
    "The key is {}",
    "Use {}.",
    "(see {})",
    '{{"value": "{}", "n": 1}}',
    '{{\\"value\\":\\"{}\\"}}',
    "line\\n{}\\nnext",
    "→\\u0022{}\\u0022",
    "X={}",
    "export SOME_VALUE='{}'",
    'value: "{}"',
    "https://api.example/v1?k={}&a=1",
    "https://api.example/%3D{}%26",
    "curl -H 'X-Auth: {}' https://api.example",
    "tool --value {} --verbose",
    "a,{},b",
    "`{}`",
    "<b>{}</b>",
)
#: Frames in which a token is percent-encoded, or has its slashes escaped as in some JSON.
_URLS, _JSON = {12, 13}, {5, 6}


def tokens(form: VendorFormat, rng: random.Random, count: int) -> list[str]:
    """Return tokens with random characters. Some have no digit, or a hyphen at the end."""
    columns = [_texts(part, rng, count) for part in form.parts()]
    made = [form.prefix + "".join(pieces) for pieces in zip(*columns, strict=True)]
    ends_in_base64 = list(form.parts())[-1].alphabet == "base64"
    return [token + "=" * (-len(token) % 4 % 3) for token in made] if ends_in_base64 else made


def _texts(part: Part, rng: random.Random, count: int) -> list[str]:
    if part.text:
        return [part.text] * count
    drawn = "".join(rng.choices(ALPHABETS[part.alphabet], k=part.most * count))
    lengths = rng.choices(range(part.least, part.most + 1), k=count)
    return [drawn[part.most * number : part.most * number + length] for number, length in enumerate(lengths)]


def framed(token: str, number: int) -> tuple[str, str]:
    """Return a text with the token in a frame, and a pattern of the redacted text."""
    frame = PRINTED_FRAMES[number % len(PRINTED_FRAMES)]
    shown = token
    is_escaped = "\\" in token or "%" in token
    if is_escaped:
        pass
    elif number % len(PRINTED_FRAMES) in _URLS:
        shown = quote(token, safe=":$" if token[-1] == "=" or "+" in token else ":$/=")
    elif number % len(PRINTED_FRAMES) in _JSON and number % 2:
        shown = token.replace("/", "\\/")
    before, after = frame.format("\0").split("\0")
    return before + shown + after, re.escape(before) + MARK + re.escape(after)


def samples(form: VendorFormat, rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Return texts with a token of the format, and a pattern of the redacted text of each."""
    return [framed(token, number) for number, token in enumerate(tokens(form, rng, count))]


#: Only a rule can recognise these secrets: `add_rules` adds it.
RULE_NEEDLE, RULE_TOKEN = "Canary4711Needle", "acme_Canary0815Token"
RULE_SECRET = f'pä"ss/w\\ord +{RULE_NEEDLE}'
_RAW = RULE_SECRET.encode()
ENCODINGS: dict[str, Callable[[], str]] = {
    "plain": lambda: RULE_SECRET,
    **{
        f"base64_{shift}": lambda shift=shift: base64.b64encode(b"a:b"[:shift] + _RAW + b":c").decode()
        for shift in range(3)
    },  # type: ignore[misc]
    **{
        f"base64url_{shift}": lambda shift=shift: base64.urlsafe_b64encode(b"a:b"[:shift] + _RAW).decode()
        for shift in range(3)
    },  # type: ignore[misc]
    "percent": lambda: quote(RULE_SECRET, safe=""),
    "form": lambda: quote_plus(RULE_SECRET),
    "json": lambda: json.dumps(RULE_SECRET),
    "json_unicode": lambda: json.dumps(RULE_SECRET, ensure_ascii=False),
    "json_twice": lambda: json.dumps(json.dumps(RULE_SECRET)),
}


def _needle(shown: str) -> str:
    """Return the part of an encoded secret that is visible if it is not redacted."""
    return RULE_NEEDLE if RULE_NEEDLE in shown else shown[14:30]


RULE_CANARIES = {
    **{f"rule_{name}": (_needle(shown := make()), shown) for name, make in ENCODINGS.items()},
    "rule_format": (RULE_TOKEN, RULE_TOKEN),
}
CANARIES: dict[str, tuple[str, str]] = {
    **{
        kind: ((token := make()), f"{'1234567890:' if kind == 'telegram' else ''}{token}")
        for kind, make in TOKENS.items()
    },
    **{kind: (found := make())[::-1] for kind, make in SETTINGS.items()},
    "pem": ((key := pem("PRIVATE KEY")).split("\n")[5], key),
    **RULE_CANARIES,
}
TEXT = "\n".join(f"{number}. {shown}" for number, (_, shown) in enumerate(CANARIES.values()))


def add_rules(project: Project) -> None:
    """Add the rules that RULE_CANARIES need. They apply immediately, also within a test's transaction."""
    redaction_changes.add_secret(project, "rule_secret", RULE_SECRET, actor="test")
    redaction_changes.add_format(project, "rule_token", "acme_", alphabet="alnum", least=10, most=40, actor="test")
    CACHE.expire()


def store_raw(run: AgentRun) -> None:
    """Append events with canaries as an older version, which did not recognise them, would have stored them."""
    nested = json.dumps({"command": f"cd x\n{TEXT}"})
    with transaction.atomic():
        log.append(
            run.pk,
            [Entry(Error(error_type="x", error=said), clean=True) for said in (TEXT, nested)],
            source=Source.WORKER,
        )


def answer_of(run: AgentRun) -> AgentRunMessage:
    return AgentRunMessage.objects.filter(run=run, role="assistant").order_by("position")[0]


def seen_in(body: str) -> list[str]:
    """Return the kinds of canaries that are visible in a response, as plain text or escaped by JSON or HTML."""
    plain = html.unescape(body)
    texts = (plain, plain.replace("\\/", "/"), plain.replace('\\"', '"'))
    found = [kind for kind, (secret, _) in CANARIES.items() if any(secret in text for text in texts)]
    return found + ["member"] * ("s3cret-pw" in plain)
