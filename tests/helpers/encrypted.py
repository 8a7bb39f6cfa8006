"""Encrypted Parquet files, with keys that are hex-encoded instead of wrapped."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption

#: The ways to encrypt the columns "x" and "y", or the first of them only.
FORMS: dict[str, dict[str, Any]] = {
    "readable footer": {"plaintext_footer": True, "column_keys": {"c": ["x"]}},
    "readable footer, pages without checks": {
        "plaintext_footer": True,
        "column_keys": {"c": ["x", "y"]},
        "encryption_algorithm": "AES_GCM_CTR_V1",
    },
    "encrypted footer": {"column_keys": {"c": ["x"]}},
    "one key for all": {"uniform_encryption": True},
}


class _Keys(encryption.KmsClient):  # type: ignore[misc]
    def wrap_key(self, key_bytes: bytes, _name: str) -> bytes:
        return key_bytes.hex().encode()

    def unwrap_key(self, wrapped_key: bytes, _name: str) -> bytes:
        return bytes.fromhex(wrapped_key.decode())


def encrypted(table: pa.Table, form: str) -> bytes:
    """A file with these rows, encrypted in one of the `FORMS`."""
    factory = encryption.CryptoFactory(lambda _: _Keys())
    wanted = encryption.EncryptionConfiguration(footer_key="f", **FORMS[form])
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), wanted)
    sink = io.BytesIO()
    pq.write_table(table, sink, encryption_properties=properties)
    return sink.getvalue()
