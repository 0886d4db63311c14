"""Encrypted files: AES-256-GCM in records of 1 MiB, with a key from a passphrase (scrypt).

A first line in plain JSON names the format and the salt. Each record is authenticated with its number and with whether
it is the last: records cannot be changed, moved or cut off, and the place is named.
"""

from __future__ import annotations

import hashlib
import io
import os
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import msgspec

from core.errors import Invalid

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FORMAT = "sika-log-sealed/1"
RECORD_BYTES = 1 << 20
TAG_BYTES = 16
SALT_BYTES = 16
N, R, P = 1 << 17, 8, 1
"""Parameters of scrypt: 128 MiB and 0.3 s for a try of a passphrase (research debugging §4)."""
SCRYPT_BYTES = 160 << 20
HEAD_BYTES = 1024
_BEGIN = b'{"format":"sika-log-sealed/'


class Head(msgspec.Struct, frozen=True):
    """The first line."""

    format: str
    salt: str


class Sealer:
    """Encrypts a stream of bytes, in bounded memory."""

    def __init__(self, passphrase: str) -> None:
        salt = os.urandom(SALT_BYTES)
        self._cipher = _cipher(passphrase, salt)
        self._held = msgspec.json.encode(Head(FORMAT, salt.hex())) + b"\n"
        self._begun = False
        self._number = 0

    def feed(self, data: bytes) -> bytes:
        """Returns the encrypted bytes that are complete; at least one byte is held back for the last record."""
        out = [] if self._begun else [self._held]
        self._held, self._begun = (self._held if self._begun else b"") + data, True
        while len(self._held) > RECORD_BYTES:
            out.append(self._record(self._held[:RECORD_BYTES], last=False))
            self._held = self._held[RECORD_BYTES:]
        return b"".join(out)

    def end(self) -> bytes:
        """Returns the last record."""
        return self.feed(b"") + self._record(self._held, last=True)

    def _record(self, data: bytes, last: bool) -> bytes:
        self._number += 1
        return self._cipher.encrypt(_nonce(self._number), data, _about(last))


class _Sealed(io.RawIOBase):
    """The decrypted bytes of a file, from any place."""

    def __init__(self, name: str, file: BinaryIO, passphrase: str) -> None:
        head = _head(name, file)
        self._name, self._file = name, file
        self._begin = file.tell()
        size = file.seek(0, io.SEEK_END) - self._begin
        self._records = max(1, -(-size // (RECORD_BYTES + TAG_BYTES)))
        self._cipher = _cipher(passphrase, bytes.fromhex(head.salt))
        self._current = -1, b""
        self._at = 0
        self._record(0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("not from the end")
        self._at = offset + (self._at if whence == io.SEEK_CUR else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        number, skip = divmod(self._at, RECORD_BYTES)
        data = self._record(number)[skip : skip + len(buffer)] if number < self._records else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _record(self, number: int) -> bytes:
        from cryptography.exceptions import InvalidTag

        if self._current[0] != number:
            place = self._begin + number * (RECORD_BYTES + TAG_BYTES)
            self._file.seek(place)
            raw, last = self._file.read(RECORD_BYTES + TAG_BYTES), number == self._records - 1
            try:
                self._current = number, self._cipher.decrypt(_nonce(number + 1), raw, _about(last))
            except (InvalidTag, ValueError) as error:
                reason = f"the record at byte {place} was changed, or the file was cut off"
                reason = f"wrong passphrase, or {reason}" if number == 0 else reason
                raise Invalid(f"{self._name}: {reason}") from error
        return self._current[1]


def is_sealed(file: BinaryIO) -> bool:
    """Tells whether a file is encrypted. Leaves it at its beginning."""
    begin = file.read(len(_BEGIN))
    file.seek(0)
    return begin == _BEGIN


def reader(name: str, file: BinaryIO, passphrase: str) -> BinaryIO:
    """Returns the decrypted file. Raises `Invalid` for a wrong passphrase, and when a changed place is read."""
    return cast("BinaryIO", io.BufferedReader(_Sealed(name, file, passphrase), RECORD_BYTES))


def _head(name: str, file: BinaryIO) -> Head:
    try:
        head = msgspec.json.decode(file.readline(HEAD_BYTES), type=Head)
        salt = bytes.fromhex(head.salt)
    except (msgspec.DecodeError, ValueError) as error:
        raise Invalid(f"{name}, line 1: {error}") from error
    if head.format != FORMAT or len(salt) != SALT_BYTES:
        raise Invalid(f"{name}, line 1: the format {head.format!r} is not {FORMAT!r}")
    return head


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")


def _about(last: bool) -> bytes:
    return b"last" if last else b"more"


def _cipher(passphrase: str, salt: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # not loaded for a file in plain text

    return AESGCM(hashlib.scrypt(passphrase.encode(), salt=salt, n=N, r=R, p=P, maxmem=SCRYPT_BYTES, dklen=32))
