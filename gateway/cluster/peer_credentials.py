"""What follows from the secret of all gateways: certificates, session ids and keys, each derived for one use.

The certificates are made by an authority whose key comes from the secret, so every gateway has the same one without
any file. A connection between two gateways is TLS 1.3 in which both show a certificate of that authority; the one of
the listener names it, so that an address which leads to another gateway, or to a stranger, is not talked to.
"""

from __future__ import annotations

import hmac
import os
import secrets
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

PROTOCOL: Final = b"1"
"""The version of what gateways say to each other; during an upgrade another one may be there."""
# The order of P-256 (SEC 2, section 2.4.2): private keys are below it.
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
# So much longer than the order that every private key is as likely as any other (FIPS 186-5, A.2.1).
_KEY_MATERIAL_BYTES: Final = 48
_KEY_BYTES: Final = 32
# A certificate ends with its process; clocks that differ, or a process that runs for years, must not matter.
_SINCE: Final = datetime(2020, 1, 1, tzinfo=UTC)
_LIFE: Final = timedelta(days=36_500)
_RANDOM_CHARS: Final = 32
# Whoever guesses these 64 bits has a look-up made in our own domain, and gets 404.
_MARK_CHARS: Final = 16
_HEX: Final = frozenset("0123456789abcdef")
# A name is one label of DNS.
_MAX_ID_CHARS: Final = 63 + 1 + _RANDOM_CHARS + _MARK_CHARS


class PeerCredentials:
    """What one gateway can prove to the others, and check of them."""

    def __init__(self, secret: str, name: str) -> None:
        """Derive from this secret.

        Args:
            secret: That of all gateways.
            name: This one's.
        """
        self._secret = secret.encode()
        self.name = name
        self._id_key = self.key("ids of sessions")

    def key(self, use: str) -> bytes:
        """A key for one use, which tells nothing of the keys for others."""
        return self._derived(use, _KEY_BYTES)

    def new_session_id(self) -> str:
        """An id that names this gateway, and that no caller can make up."""
        random = secrets.token_hex(_RANDOM_CHARS // 2)
        return f"{self.name}.{random}{self._mark(self.name, random)}"

    def owner_of(self, session_id: str) -> str | None:
        """The gateway that gave out a session's id; None where none of ours did."""
        if len(session_id) > _MAX_ID_CHARS or not session_id.isascii():
            return None
        name, dot, rest = session_id.partition(".")
        if not dot or len(rest) != _RANDOM_CHARS + _MARK_CHARS or not _HEX.issuperset(rest):
            return None
        random, mark = rest[:_RANDOM_CHARS], rest[_RANDOM_CHARS:]
        return name if hmac.compare_digest(mark, self._mark(name, random)) else None

    @cached_property
    def listener_context(self) -> ssl.SSLContext:
        """For who is connected to."""
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    @cached_property
    def caller_context(self) -> ssl.SSLContext:
        """For who connects."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    @cached_property
    def any_replica_context(self) -> ssl.SSLContext:
        """For a caller to whom it does not matter which replica answers."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        authority, chain = self._certificates
        context.load_verify_locations(cadata=authority)
        _load_chain(context, chain)
        return context

    @cached_property
    def _certificates(self) -> tuple[str, bytes]:
        """The authority, and this gateway's own certificate with its key."""
        number = int.from_bytes(self._derived("the authority of certificates", _KEY_MATERIAL_BYTES), "big")
        authority_key = ec.derive_private_key(number % (_ORDER - 1) + 1, ec.SECP256R1())
        issuer = _common_name("typegate peers")
        authority = (
            _begun(issuer, issuer, authority_key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        key = ec.generate_private_key(ec.SECP256R1())
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        own = (
            _begun(_common_name(self.name), issuer, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(self.name)]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
            .sign(authority_key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return authority.public_bytes(pem).decode(), own.public_bytes(pem) + private

    def _mark(self, name: str, random: str) -> str:
        return hmac.digest(self._id_key, f"{name}.{random}".encode(), "sha256").hex()[:_MARK_CHARS]

    def _derived(self, use: str, length: int) -> bytes:
        info = f"typegate cluster: {use}".encode()
        return HKDF(algorithm=hashes.SHA256(), length=length, salt=None, info=info).derive(self._secret)


def _load_chain(context: ssl.SSLContext, chain: bytes) -> None:
    """Load a certificate with its key, which `ssl` only takes from a file: where that is possible, one in memory."""
    if hasattr(os, "memfd_create"):
        # The root of a container may be read-only, and a key on a disk is one more that can be read.
        with os.fdopen(os.memfd_create("typegate"), "wb") as file:
            file.write(chain)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return
    with tempfile.TemporaryDirectory(prefix="typegate-") as folder:
        path = Path(folder) / "chain.pem"
        path.touch(mode=0o600)
        path.write_bytes(chain)
        context.load_cert_chain(path)


def _begun(subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_SINCE)
        .not_valid_after(_SINCE + _LIFE)
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, crl_sign=False,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
