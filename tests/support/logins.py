"""A small OpenID provider on 127.0.0.1, and an authenticator app with codes by RFC 6238, as partners of logins.

The provider has discovery, keys, authorization with PKCE, signed ID tokens and user info.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib
import json
import secrets
import struct
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from cryptography.hazmat.primitives.asymmetric import rsa
from django.contrib.auth.models import User
from django.urls import include, path

from agentops import urls

CLIENT_ID, CLIENT_SECRET = "agentops-of-the-tests", "a client secret of the tests"
KEY_ID = "key-1"


class OpenIDProvider:
    """The provider. Its user is `claims`; `token_claims` replace claims of the ID token, and so make it invalid."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {}
        self.token_claims: dict[str, Any] = {}
        self.key = rsa.generate_private_key(65537, 2048)
        #: Code → what the authorization request asked for; access token → claims of its user.
        self.codes: dict[str, dict[str, str]] = {}
        self.tokens: dict[str, dict[str, Any]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self.issuer = f"http://127.0.0.1:{self._server.server_port}/realms/team"
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def discovery(self) -> dict[str, Any]:
        paths = {"authorization_endpoint": "authorize", "token_endpoint": "token", "userinfo_endpoint": "userinfo"}
        endpoints = {name: f"{self.issuer}/{path}" for name, path in paths.items()}
        return {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys", **endpoints}

    def keys(self) -> dict[str, Any]:
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        return {"keys": [{**public, "kid": KEY_ID, "alg": "RS256", "use": "sig"}]}

    def authorize(self, query: dict[str, str]) -> str:
        """Return the address to which the browser is sent after the user has logged in and agreed."""
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def token(self, form: dict[str, str]) -> dict[str, Any] | None:
        """Return the tokens for a code; None if the request does not belong to the code, or the secret is wrong."""
        asked = self.codes.pop(form.get("code", ""), None)
        if asked is None or form["redirect_uri"] != asked["redirect_uri"]:
            return None
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]:
            return None
        if (form["client_id"], form["client_secret"]) != (CLIENT_ID, CLIENT_SECRET):
            return None
        access_token = secrets.token_urlsafe(16)
        self.tokens[access_token] = self.claims
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT_ID, "iat": now, "exp": now + 300, "jti": secrets.token_hex(8)}
        claims |= {"sub": self.claims["sub"]} | self.token_claims
        id_token = jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": KEY_ID})
        return {"access_token": access_token, "token_type": "Bearer", "expires_in": 300, "id_token": id_token}


def _handler_of(provider: OpenIDProvider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            match parts.path.removeprefix("/realms/team"):
                case "/.well-known/openid-configuration":
                    self._answer(provider.discovery())
                case "/keys":
                    self._answer(provider.keys())
                case "/authorize":
                    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                    self._answer({}, 302, Location=provider.authorize(query))
                case "/userinfo":
                    token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                    self._answer(provider.tokens.get(token, {}), 200 if token in provider.tokens else 401)
                case _:
                    self._answer({}, 404)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            tokens = provider.token({name: values[0] for name, values in parse_qs(body).items()})
            self._answer(tokens or {"error": "invalid_grant"}, 200 if tokens else 400)

        def _answer(self, value: dict[str, Any], status: int = 200, **headers: str) -> None:
            content = json.dumps(value).encode()
            self.send_response(status)
            for name, header in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, header)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            """Log nothing."""

    return Handler


STEP_S = 30


def urls_with(*names: str) -> type:
    """Return a ROOT_URLCONF: the URLs of these modules of agentops.accounts.login, then the site's.

    The modules are loaded again, because they read the settings when they are loaded.
    """
    modules = [importlib.reload(importlib.import_module(f"agentops.accounts.login.{name}")) for name in names]
    handlers = {name: getattr(urls, name) for name in ("handler400", "handler403", "handler404", "handler500")}
    patterns = [path("", include(each)) for each in (*modules, urls)]
    return type("Urls", (), {**handlers, "urlpatterns": patterns})


@dataclass
class AuthenticatorApp:
    """An app with one key, and the recovery codes that its user has stored."""

    key: str
    recovery_codes: list[str] = field(default_factory=list)

    def code(self, steps: int = 0) -> str:
        """Return the code of the current time step, or of one that is `steps` later."""
        counter = struct.pack(">Q", int(time.time()) // STEP_S + steps)
        digest = hmac.new(base64.b32decode(self.key), counter, hashlib.sha1).digest()
        start = digest[-1] & 15
        number = struct.unpack(">I", digest[start : start + 4])[0] & 0x7FFFFFFF
        return f"{number % 1_000_000:06}"

    def wrong_code(self) -> str:
        """Return a code that is not valid now, nor in the time steps around now."""
        valid = {self.code(steps) for steps in range(-3, 4)}
        return next(code for code in (f"{number:06}" for number in range(10)) if code not in valid)


def add_app(user: User) -> AuthenticatorApp:
    """Give the user a second factor, as its pages do."""
    app = AuthenticatorApp(generate_totp_secret())
    TOTP.activate(user, app.key)
    app.recovery_codes = RecoveryCodes.activate(user).generate_codes()
    return app
