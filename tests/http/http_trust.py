"""A certificate for the servers of these tests, and the trust in it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Trust:
    """A server's certificate, a client that trusts its authority, and the file with that authority."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    file: Path


def make_trust(folder: Path, host: str = "shop.example") -> Trust:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = folder / "certificate.pem"
    private = folder / "key.pem"
    certificate.write_bytes(_signed(key, host).public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    client = ssl.create_default_context(cafile=str(certificate))
    return Trust(_server(certificate, private), client, certificate)


def _server(certificate: Path, private: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, private)
    return context


def _signed(key: ec.EllipticCurvePrivateKey, host: str) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName(host)])
    build = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    build = build.serial_number(x509.random_serial_number()).add_extension(names, critical=False)
    build = build.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    build = build.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    return build.sign(key, hashes.SHA256())
