"""The environment of a stdio server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from faults.observing import until_server
from support.gateways import running_gateway

from gateway.process.secrets import SECRETS
from gateway.upstream.transport.process_start import child_environment

OURS = {
    "PATH": "/bin",
    "HTTPS_PROXY": "http://ann:a-pass-word-7@proxy.test:3128",
    "no_proxy": "localhost",
    "SSL_CERT_FILE": "/etc/ssl/own.pem",
    "NODE_EXTRA_CA_CERTS": "/etc/ssl/own.pem",
    "TYPEGATE_ADMIN_TOKEN": "t",
    "AWS_SECRET_ACCESS_KEY": "s",
    "ALL_PROXY": "socks://x",
}
GIVEN = {"PATH", "HTTPS_PROXY", "no_proxy", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"}


def test_child_inherits_proxies_and_certificates_only() -> None:
    assert child_environment({"OWN": "1"}, OURS) == {"OWN": "1", **{key: OURS[key] for key in GIVEN}}


def test_configured_variable_replaces_the_other_case() -> None:
    seen = child_environment({"https_proxy": "http://other.test"}, OURS)
    assert seen["https_proxy"] == "http://other.test"
    assert "HTTPS_PROXY" not in seen


def test_proxy_password_is_hidden_in_every_text() -> None:
    child_environment({}, OURS)
    child_environment({}, {"http_proxy": "ann:an-other-word-8@proxy.test:3128"})
    child_environment({}, {"http_proxy": "http://t0ken-8aBcD3@proxy.test:3128"})
    text = SECRETS.scrub("ann:a-pass-word-7@ ann:an-other-word-8@ t0ken-8aBcD3@proxy.test")
    assert text == "ann:[hidden]@ ann:[hidden]@ [hidden]@proxy.test"


async def test_server_failing_behind_a_proxy_does_not_reveal_its_password(tmp_path: Path) -> None:
    script = "import os, sys; print('cannot reach ' + os.environ['HTTPS_PROXY'], file=sys.stderr); sys.exit(1)"
    servers = {"up": {"command": sys.executable, "args": ["-c", script]}}
    proxy = {"HTTPS_PROXY": OURS["HTTPS_PROXY"]}
    async with running_gateway(tmp_path, servers, environment=proxy) as gateway:
        row = await until_server(gateway, "up", lambda row: row["lastError"])
        assert "cannot reach http://ann:[hidden]@proxy.test:3128" in row["lastError"]
        assert "a-pass-word-7" not in gateway.logged() + json.dumps(row)
