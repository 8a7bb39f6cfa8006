"""Errors of S3 and its client library, translated into one sentence on what is wrong and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    CredentialRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)

from parketto.errors import AccessDenied, AuthenticationFailed, BucketNotFound, InvalidArgument, ParkettoError

_CREDENTIALS_HINT = (
    "pass access_key_id and secret_access_key, or a profile, in AwsStorageOptions; or set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY; for public buckets pass anonymous=True"
)
_NO_CREDENTIALS = (
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
_REJECTED_CREDENTIALS = frozenset(
    {
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidSecurity",
        "InvalidToken",
        "NotSignedUp",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)


@contextlib.contextmanager
def translated_errors(path: str) -> Iterator[None]:
    """Translate what s3fs and botocore raise for an object or a folder into Parketto's errors."""
    try:
        yield
    except ParkettoError:
        raise
    except OSError as error:
        if (better := _from_response(error, f"s3://{path}")) is not None:
            raise better from error
        raise
    except BotoCoreError as error:
        raise _from_client(error, f"s3://{path}") from error


def response_error(error: BaseException) -> Mapping[str, Any]:
    """The code and message of S3's response to a failed request; empty if S3 did not respond."""
    answer = getattr(error, "response", None) or getattr(error.__cause__, "response", None) or {}
    found: Mapping[str, Any] = answer.get("Error", {})
    return found


def access_denied(url: str, message: object, operation: str = "") -> AccessDenied:
    """The error for an action that is not allowed."""
    what = f"{operation} on {url!r}" if operation else repr(url)
    return AccessDenied(
        f"access denied: the credentials in use do not allow {what} (S3: {message}); grant them that "
        "permission, or pass others in storage_options"
    )


def _from_response(error: OSError, url: str) -> Exception | None:
    answer = response_error(error)
    code, message = str(answer.get("Code", "")), answer.get("Message") or str(error)
    if code == "NoSuchBucket":
        bucket = url.removeprefix("s3://").partition("/")[0]
        return BucketNotFound(
            f"the bucket {bucket!r} of {url!r} does not exist; check the name, or create the bucket first: "
            "Parketto never creates buckets"
        )
    if code in _REJECTED_CREDENTIALS:
        return AuthenticationFailed(
            f"S3 does not accept the credentials for {url!r} ({code}: {message}); {_CREDENTIALS_HINT}"
        )
    if isinstance(error, PermissionError):
        return access_denied(url, message, getattr(error.__cause__, "operation_name", ""))
    return None


def _from_client(error: BotoCoreError, url: str) -> Exception:
    text = " ".join(str(error).split())
    if isinstance(error, _NO_CREDENTIALS):
        return AuthenticationFailed(f"no credentials found for {url!r} ({text}); {_CREDENTIALS_HINT}")
    if isinstance(error, ParamValidationError):
        return InvalidArgument(f"{url!r} is not a valid S3 path: {text}")
    return ConnectionError(f"S3 cannot be reached for {url!r}: {text}")
