"""What S3 and its client library refuse, as errors that say in one sentence what is wrong and what to do."""

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

_LOGIN = (
    "pass access_key_id and secret_access_key, or a profile, in AwsStorageOptions; or set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY; for public buckets pass anonymous=True"
)
_NO_LOGIN = (
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
_BAD_LOGIN = frozenset(
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
def explained(path: str) -> Iterator[None]:
    """Turn what s3fs and botocore raise over an object or a folder into errors of ours."""
    try:
        yield
    except ParkettoError:
        raise
    except OSError as error:
        if (better := _of_answer(error, f"s3://{path}")) is not None:
            raise better from error
        raise
    except BotoCoreError as error:
        raise _of_client(error, f"s3://{path}") from error


def answered(error: BaseException) -> Mapping[str, Any]:
    """What S3 said about an error, if it was S3: its code and message."""
    answer = getattr(error, "response", None) or getattr(error.__cause__, "response", None) or {}
    found: Mapping[str, Any] = answer.get("Error", {})
    return found


def denied(url: str, message: object, operation: str = "") -> AccessDenied:
    """The error over an action that is not allowed."""
    what = f"{operation} on {url!r}" if operation else repr(url)
    return AccessDenied(
        f"access denied: the credentials in use do not allow {what} (S3 says: {message}); grant them that "
        "permission, or pass others in storage_options"
    )


def _of_answer(error: OSError, url: str) -> Exception | None:
    said = answered(error)
    code, message = str(said.get("Code", "")), said.get("Message") or str(error)
    if code == "NoSuchBucket":
        bucket = url.removeprefix("s3://").partition("/")[0]
        return BucketNotFound(
            f"the bucket {bucket!r} of {url!r} does not exist; check the name, or create the bucket first: "
            "Parketto never does"
        )
    if code in _BAD_LOGIN:
        return AuthenticationFailed(
            f"S3 does not accept the credentials for {url!r} ({code}: {message}); {_LOGIN}"
        )
    if isinstance(error, PermissionError):
        return denied(url, message, getattr(error.__cause__, "operation_name", ""))
    return None


def _of_client(error: BotoCoreError, url: str) -> Exception:
    text = " ".join(str(error).split())
    if isinstance(error, _NO_LOGIN):
        return AuthenticationFailed(f"there are no credentials for {url!r} ({text}); {_LOGIN}")
    if isinstance(error, ParamValidationError):
        return InvalidArgument(f"{url!r} is no path in S3: {text}")
    return ConnectionError(f"S3 cannot be reached for {url!r}: {text}")
