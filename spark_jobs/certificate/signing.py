"""Signs a certificate with Ed25519, and verifies it. The signed bytes are the certificate as JSON with sorted keys."""

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from spark_jobs.certificate import FORMAT

ALGORITHM: Final = "Ed25519"
FILE_BYTES_MAX: Final = 64 * 1024 * 1024


class SigningError(ValueError):
    """A key that can't be used, or a certificate that can't be verified, with the remedy."""


def make_key(path: Path) -> str:
    """Write a new private key (PEM, mode 0600) to *path*, which must not exist, and the public one to *path*.pub.

    Returns its fingerprint. Raises SigningError."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    try:
        for file, data, mode in ((path, private, 0o600), (path.with_name(path.name + ".pub"), public, 0o644)):
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as writer:
                writer.write(data)
    except OSError as error:
        raise SigningError(f"{error.filename}: {error.strerror}: name another file") from error
    return fingerprint(key.public_key())


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key. Raises SigningError."""
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise SigningError(f"{path}: {error.strerror}: make one with metaq certify key {path}") from error
    except (ValueError, TypeError) as error:
        raise SigningError(f"{path}: {error}: make one with metaq certify key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SigningError(f"{path}: not an {ALGORITHM} key: make one with metaq certify key")
    return key


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Read a public key. Raises SigningError."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise SigningError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise SigningError(f"{path}: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise SigningError(f"{path}: not an {ALGORITHM} key")
    return key


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return a public key's SHA-256, as hexadecimal digits."""
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()


def signed(certificate: dict[str, Any], key: Ed25519PrivateKey) -> dict[str, Any]:
    """Return *certificate* with its signature."""
    public = key.public_key()
    return {
        "certificate": certificate,
        "signature": {
            "algorithm": ALGORITHM,
            "public_key": base64.b64encode(public.public_bytes(Encoding.Raw, PublicFormat.Raw)).decode(),
            "fingerprint": fingerprint(public),
            "value": base64.b64encode(key.sign(_bytes(certificate))).decode(),
        },
    }


def verified(path: Path, key: Ed25519PublicKey | None) -> tuple[dict[str, Any], str]:
    """Return the certificate in a file, and the fingerprint of the key that signed it. Raises SigningError if it was
    changed, or signed by another key than *key*; without one the file's own is taken, which proves nobody's name."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise SigningError(f"{path}: too long for a certificate")
        envelope = json.loads(path.read_bytes(), object_pairs_hook=_object)
        certificate, signature = envelope["certificate"], envelope["signature"]
        if signature is None:
            raise SigningError(f"{path}: not signed: {'; '.join(map(str, certificate['refused']))}")
        if signature["algorithm"] != ALGORITHM:
            raise SigningError(f"{path}: signed by {signature['algorithm']}, this version verifies {ALGORITHM}")
        own = Ed25519PublicKey.from_public_bytes(base64.b64decode(signature["public_key"], validate=True))
        value = base64.b64decode(signature["value"], validate=True)
        data = _bytes(certificate)
    except OSError as error:
        raise SigningError(f"{path}: {error.strerror}") from error
    except SigningError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SigningError(f"{path}: no certificate: {error}") from error
    if key is not None and fingerprint(key) != fingerprint(own):
        raise SigningError(f"{path}: signed by key {fingerprint(own)}, not by {fingerprint(key)}")
    try:
        own.verify(value, data)
    except InvalidSignature as error:
        raise SigningError(f"{path}: the signature does not fit: it was changed after it was signed") from error
    match certificate:
        case {"format": format_, "sentence": str()} if format_ == FORMAT:
            return certificate, fingerprint(own)
    raise SigningError(f"{path}: signed, and no certificate of format {FORMAT}: verify it with the metaq that made it")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises ValueError for a name that is there twice: others may read the value that is not
    signed."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice in one object")
    return found


def _bytes(certificate: dict[str, Any]) -> bytes:
    return json.dumps(certificate, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
