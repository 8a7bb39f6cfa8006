"""Maintenance policies: when partitions are compacted or clustered, what is left alone, what a run may cost."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar, get_args

from parketto.arguments import DEFAULT_TARGET_MB
from parketto.errors import EngineUnavailable, InvalidArgument, quoted
from parketto.planning.clustering import DEFAULT_CURVE, Curve, check_clustering

NEEDED = "maintenance policies need the packages pydantic and pyyaml. Run: pip install 'parketto[maintenance]'"
try:
    from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
except ImportError as error:
    raise EngineUnavailable(NEEDED) from error

Text = Annotated[str, Field(strict=True, min_length=1)]
Flag = Annotated[bool, Field(strict=True)]
Whole = Annotated[int, Field(strict=True, ge=1)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, lt=1)]
Items = Annotated[list[Any], Field(min_length=1)]
Hidden = Annotated[dict[str, Any] | None, Field(repr=False)]
Loc = tuple[int | str, ...]
Model = TypeVar("Model", bound="Settings")

MISSING = "is missing"
_SHOWN_CHARACTERS = 60  # of a value that an error message repeats


def _switch(value: Any) -> Any:
    """A rule that is only switched on, or off: `compact: true`."""
    if value is True:
        return {}
    return None if value is False else value


class Settings(BaseModel):
    """The base of all settings: they cannot be changed, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CompactRule(Settings):
    """Compact a partition once it has more than `small_files` files below 75 % of the target size."""

    small_files: Whole = 20
    target_mb_per_file: Positive = DEFAULT_TARGET_MB


class ClusterRule(Settings):
    """Cluster a partition once a range query of 1 % reads more than `expected_reads` of its row groups.

    The share is the average over the columns, as `optimize(dry_run=True)` estimates it (`expected_reads`).
    """

    columns: Annotated[list[Text], Field(min_length=1)]
    curve: Curve = DEFAULT_CURVE
    expected_reads: Share = 0.3
    #: By default that of `compact`, else 128.
    target_mb_per_file: Positive | None = None

    @model_validator(mode="after")
    def _check(self) -> ClusterRule:
        check_clustering(self.columns, self.curve)
        return self


class VacuumRule(Settings):
    """Remove files that were replaced more than `days` days ago and are still kept."""

    days: Positive


class Budget(Settings):
    """What a run may cost: megabytes that are rewritten, minutes, or both."""

    mb: Positive | None = None
    minutes: Positive | None = None

    @model_validator(mode="after")
    def _check(self) -> Budget:
        if self.mb is None and self.minutes is None:
            raise InvalidArgument("the budget is empty: name mb, minutes or both")
        return self


class Rules(Settings):
    """The rules of a policy, all optional."""

    compact: Annotated[CompactRule | None, BeforeValidator(_switch)] = None
    cluster: Annotated[ClusterRule | None, BeforeValidator(_switch)] = None
    unify_schema: Flag = False
    vacuum: Annotated[VacuumRule | None, BeforeValidator(_switch)] = None
    leave_alone: Text | None = None
    budget: Budget | None = None


class Policy(Rules):
    """When and how a dataset is maintained. `Dataset.maintain` also accepts the same as a mapping.

    Attributes:
        compact: Compact partitions with more than `small_files` (20) files below 75 % of `target_mb_per_file`
            (128). True stands for these defaults.
        cluster: Cluster partitions by `columns` along a `curve`, once a range query of 1 % on them reads more
            than `expected_reads` (0.3) of the row groups on average, and would read less afterwards.
        unify_schema: Rewrite the files that do not have the dataset's schema.
        vacuum: Remove files that were replaced more than `days` days ago, and are still kept (`Dataset.vacuum`).
        leave_alone: An SQL condition over the partition columns, such as `"day >= CURRENT_DATE"`. Partitions for
            which it is TRUE are not changed.
        budget: The maximum of a run, in rewritten `mb`, in `minutes`, or both. What is worth most is done first.

    Example:
        >>> Policy.of({"compact": {"small_files": 50}}).compact
        CompactRule(small_files=50, target_mb_per_file=128)
        >>> Policy.of({"compact": {"smal_files": 50}})
        Traceback (most recent call last):
            ...
        parketto.errors.InvalidArgument: compact.smal_files: unknown key; valid keys: 'small_files', \
'target_mb_per_file'
    """

    @classmethod
    def of(cls, given: Policy | Mapping[str, Any]) -> Policy:
        """The validated policy."""
        if isinstance(given, Policy):
            return given
        if not isinstance(given, Mapping):
            raise InvalidArgument(f"policy must be a Policy or a mapping, got {given!r}")
        policy, problems = validated(cls, dict(given))
        if policy is None:
            raise InvalidArgument("\n".join(f"{key_path(loc) or 'policy'}: {text}" for loc, text in problems))
        return policy

    @model_validator(mode="after")
    def _check(self) -> Policy:
        if self.compact is None and self.cluster is None and self.vacuum is None and not self.unify_schema:
            raise InvalidArgument("there is nothing to do: name compact, cluster, unify_schema or vacuum")
        own = self.cluster.target_mb_per_file if self.cluster else None
        if self.compact and own not in (None, self.compact.target_mb_per_file):
            raise InvalidArgument(
                f"compact and cluster have different target_mb_per_file ({self.compact.target_mb_per_file:g} and "
                f"{own:g}): each would undo the work of the other; name the target once"
            )
        return self

    @property
    def cluster_target_mb(self) -> float:
        """The target size of clustered files."""
        own = self.cluster.target_mb_per_file if self.cluster else None
        return own or (self.compact.target_mb_per_file if self.compact else DEFAULT_TARGET_MB)


def validated(model: type[Model], value: Any) -> tuple[Model | None, list[tuple[Loc, str]]]:
    """The settings; or None, and every invalid key or value: where it is, and what is expected."""
    try:
        return model.model_validate(value), []
    except ValidationError as error:
        return None, list(_problems(error, model))


def _problems(error: ValidationError, model: type[Settings]) -> Iterator[tuple[Loc, str]]:
    for each in error.errors(include_url=False):
        loc = each["loc"]
        if each["type"] == "extra_forbidden":
            known = _model_at(model, loc[:-1]).model_fields
            yield loc, f"unknown key; valid keys: {quoted(known)}"
        elif each["type"] == "missing":
            yield loc, MISSING
        elif each["type"] in ("value_error", "model_type"):
            yield loc, str(each.get("ctx", {}).get("error") or "must be a mapping of keys to values")
        else:
            given = each["input"]
            shown = str(given) if isinstance(given, dt.date) else repr(given)
            short = shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}…"
            message = each["msg"].replace("Input should", "must")
            yield loc, f"{message[0].lower()}{message[1:]}, got {short}"


def key_path(loc: Loc) -> str:
    """A location in a document, as people write it.

    >>> key_path(("datasets", 1, "compact", "small_files"))
    'datasets[1].compact.small_files'
    """
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")


def _model_at(model: type[Settings], loc: Loc) -> type[Settings]:
    for part in loc:
        field = model.model_fields.get(str(part))
        kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
        model = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings)), model)
    return model
