"""Storage options: objects that build an fsspec filesystem and hide their secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from parketto.errors import AuthenticationFailed, EngineUnavailable, InvalidArgument, quoted


@dataclass(frozen=True, repr=False)
class StorageOptions:
    """The options of any filesystem that fsspec supports.

    Args:
        protocol: The filesystem's name in URLs: `gs`, `abfs`, `sftp`, `memory`, …
        options: fsspec's options for it. Values are never shown.

    Example:
        >>> options = StorageOptions("sftp", {"host": "files.example", "password": "hush"})
        >>> options
        StorageOptions(protocol='sftp', host=***, password=***)
        >>> StorageOptions("memory").filesystem().protocol
        'memory'
    """

    protocol: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def filesystem(self) -> AbstractFileSystem:
        """The filesystem.

        Raises:
            ValueError: fsspec does not support the protocol.
            ImportError: The protocol needs a package that is not installed; fsspec names it.
        """
        if self.protocol not in fsspec.available_protocols():
            raise InvalidArgument(
                f"unknown protocol {self.protocol!r}; supported: {quoted(sorted(fsspec.available_protocols()))}"
            )
        return fsspec.filesystem(self.protocol, **self.options)

    def serves(self, protocol: str) -> bool:
        """Whether URLs of a protocol are on this filesystem."""
        return protocol == self.protocol

    def __repr__(self) -> str:
        hidden = "".join(f", {name}=***" for name in self.options)
        return f"{type(self).__name__}(protocol={self.protocol!r}{hidden})"


@dataclass(frozen=True)
class LocalStorageOptions:
    """The local filesystem.

    Example:
        >>> LocalStorageOptions().filesystem().protocol
        ('file', 'local')
    """

    def filesystem(self) -> AbstractFileSystem:
        """The filesystem."""
        return LocalFileSystem()

    def serves(self, protocol: str) -> bool:
        """Whether URLs of a protocol are on this filesystem."""
        return protocol in ("file", "local")


@dataclass(frozen=True, repr=False)
class AwsStorageOptions:
    """S3 and S3-compatible services. Needs the package s3fs: `pip install 'parketto[s3]'`.

    What is not given comes from the usual AWS sources: environment, configuration files, instance role.

    Args:
        access_key_id: With `secret_access_key`, the credentials to use. Never shown.
        secret_access_key: Never shown.
        session_token: For temporary credentials. Never shown.
        profile: A profile of the AWS configuration.
        region: The region of the buckets.
        endpoint_url: The endpoint of an S3-compatible service (MinIO, Ceph, R2).
        anonymous: Read public buckets without credentials.
        extra: Further options of `s3fs.S3FileSystem`.

    Example:
        >>> AwsStorageOptions(access_key_id="AKIA", secret_access_key="hush", region="eu-central-1")
        AwsStorageOptions(access_key_id=***, secret_access_key=***, region='eu-central-1')
    """

    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    profile: str | None = None
    region: str | None = None
    endpoint_url: str | None = None
    anonymous: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def filesystem(self) -> AbstractFileSystem:
        """The filesystem.

        Raises:
            AuthenticationFailed: Credentials are missing or incomplete.
            EngineUnavailable: s3fs is not installed.
        """
        try:
            import s3fs
        except ImportError as error:
            raise EngineUnavailable("S3 needs the package s3fs. Run: pip install 'parketto[s3]'") from error
        self._check_credentials()
        region = {"region_name": self.region} if self.region else {}
        given = {
            "key": self.access_key_id,
            "secret": self.secret_access_key,
            "token": self.session_token,
            "profile": self.profile,
            "endpoint_url": self.endpoint_url,
            "anon": self.anonymous,
        }
        extra = dict(self.extra)
        if client := region | extra.pop("client_kwargs", {}):
            extra["client_kwargs"] = client
        return s3fs.S3FileSystem(**{name: value for name, value in given.items() if value}, **extra)

    def serves(self, protocol: str) -> bool:
        """Whether URLs of a protocol are on this filesystem."""
        return protocol in ("s3", "s3a")

    def _check_credentials(self) -> None:
        """Fail now, with a helpful message, rather than at the first request."""
        if self.anonymous:
            return
        # Unset variables often arrive as empty strings.
        if bool(self.access_key_id) != bool(self.secret_access_key):
            missing = "access_key_id" if self.secret_access_key else "secret_access_key"
            raise AuthenticationFailed(f"authentication for S3 is incomplete: {missing} is missing")
        if self.access_key_id or "session" in self.extra:
            return
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session

        try:
            found = Session(profile=self.profile or None).get_credentials()
        except BotoCoreError as error:
            raise AuthenticationFailed(f"authentication for S3 failed: {error}") from error
        if found is None:
            raise AuthenticationFailed(
                "authentication for S3 failed: no credentials were given or found. Pass access_key_id and "
                "secret_access_key, or a profile; or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for public "
                "buckets pass anonymous=True"
            )

    def __repr__(self) -> str:
        secrets = ("access_key_id", "secret_access_key", "session_token", "extra")
        shown = [
            f"{each.name}={'***' if each.name in secrets else _without_login(repr(value))}"
            for each in fields(self)
            if (value := getattr(self, each.name))
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def _without_login(text: str) -> str:
    """The text with user names and passwords in URLs masked.

    >>> _without_login("'https://me:hush@minio:9000'")
    "'https://***@minio:9000'"
    """
    return re.sub(r"//[^/]*@", "//***@", text)


AnyStorageOptions = StorageOptions | LocalStorageOptions | AwsStorageOptions
#: Storage options that callers may pass: one of the above, or plain fsspec options for the path's filesystem.
GivenOptions = AnyStorageOptions | Mapping[str, Any] | None
