"""A certificate authority of this installation: the proxy speaks in the name of hosts to which it adds credentials.

Only sandboxes trust it. Its key never leaves the folder of secrets.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import os
import ssl
import tempfile
from collections import OrderedDict
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

FILE = "sandbox-authority.pem"
"""Its key and its certificate."""
YEARS, LEAF_DAYS = 10, 30
KEPT = 256
"""Hosts whose certificates are kept in memory."""


class Authority:
    """Makes server certificates. Reads or writes its own in the folder of secrets. Blocks: make it in a thread."""

    def __init__(self, secrets: Path) -> None:
        secrets.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (secrets / FILE).exists():
            _create(secrets)
        content = (secrets / FILE).read_bytes()
        key = serialization.load_pem_private_key(content, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key, self._certificate = key, x509.load_pem_x509_certificate(content)
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM)
        self._contexts: OrderedDict[str, tuple[dt.datetime, ssl.SSLContext]] = OrderedDict()

    def context(self, host: str) -> ssl.SSLContext:
        """Returns the TLS context of a server with this name. Blocks for a millisecond when it is new."""
        now = dt.datetime.now(dt.UTC)
        until, context = self._contexts.get(host, (now, None))
        if context is None or until <= now:
            until, context = now + dt.timedelta(days=LEAF_DAYS - 1), self._leaf(host, now)
            self._contexts[host] = until, context
        self._contexts.move_to_end(host)
        while len(self._contexts) > KEPT:
            self._contexts.popitem(last=False)
        return context

    def _leaf(self, host: str, now: dt.datetime) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(_name(host[:64]), self._certificate.subject, key.public_key(), now, dt.timedelta(days=LEAF_DAYS))
            .add_extension(x509.SubjectAlternativeName([_general(host)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        with tempfile.NamedTemporaryFile() as file:  # 0600; `ssl` reads certificates from files only
            file.write(_private(key) + certificate.public_bytes(serialization.Encoding.PEM))
            file.flush()
            context.load_cert_chain(file.name)
        return context


def bundle(authority: bytes) -> bytes:
    """Returns the certificates that commands trust: the system's, and the authority's. Blocks."""
    paths = ssl.get_default_verify_paths()
    places = (paths.cafile, paths.openssl_cafile, "/etc/ssl/certs/ca-certificates.crt")
    system = next((Path(place) for place in places if place and os.path.isfile(place)), None)
    return (system.read_bytes() + b"\n" if system else b"") + authority


def _create(secrets: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    name, now = _name("Sika sandbox proxy"), dt.datetime.now(dt.UTC)
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(name, name, key.public_key(), now, dt.timedelta(days=365 * YEARS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    descriptor, draft = tempfile.mkstemp(dir=secrets)  # 0600
    with os.fdopen(descriptor, "wb") as file:
        file.write(_private(key) + certificate.public_bytes(serialization.Encoding.PEM))
    with contextlib.suppress(FileExistsError):  # another process was faster: its authority is the one
        os.link(draft, secrets / FILE)
    os.unlink(draft)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: dt.datetime, life: dt.timedelta
) -> x509.CertificateBuilder:
    hour = dt.timedelta(hours=1)  # for clocks that go wrong
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - hour)
        .not_valid_after(now + life)
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    none = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, none)
