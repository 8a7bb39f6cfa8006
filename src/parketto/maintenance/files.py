"""Policy files: many datasets with a policy each, as YAML."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from parketto.dataset import Dataset
from parketto.errors import InvalidArgument, quoted
from parketto.maintenance.documents import Document, parse
from parketto.planning.policy import (
    MISSING,
    Budget,
    Hidden,
    Items,
    Loc,
    Model,
    Policy,
    Rules,
    Settings,
    Text,
    Whole,
    key_path,
    validated,
)


class _Opening(Settings):
    """How a dataset is opened; the arguments of `Dataset`."""

    engine: Literal["spark", "duckdb", "pyarrow"] | None = None
    storage_options: Hidden = None
    workspace: Text | None = None
    timezone: Text | None = None
    memory_mb: Whole | None = None
    threads: Whole | None = None


class Defaults(_Opening, Rules):
    """What applies to every dataset of a file, unless the dataset says otherwise."""


class DatasetPolicy(_Opening, Policy):
    """A dataset and its policy."""

    path: Text

    def open(self) -> Dataset:
        """The dataset."""
        given = {name: getattr(self, name) for name in _Opening.model_fields}
        return Dataset(self.path, **{name: value for name, value in given.items() if value is not None})

    def below(self, folder: str) -> DatasetPolicy:
        """The same with absolute paths; relative ones are below a folder."""
        given = {"path": self.path, "workspace": self.workspace}
        found = {
            name: path if "://" in path else os.path.normpath(os.path.join(folder, path))
            for name, path in given.items()
            if path is not None
        }
        return self.model_copy(update=found)


class PolicyFile(Settings):
    """The datasets of a policy file, each with its policy, and the budget of all of them together."""

    datasets: list[DatasetPolicy]
    budget: Budget | None = None


class _Outline(Settings):
    """The top level of a file."""

    datasets: Items
    defaults: Any = None
    budget: Budget | None = None


def load(path: str | os.PathLike[str]) -> PolicyFile:
    """Read and validate a policy file. No dataset is opened.

    Relative paths of datasets are relative to the file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not valid. Every problem is listed with its line, key and the valid choices.

    Example:
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp(), "policy.yml")
        >>> _ = file.write_text('''
        ... defaults:
        ...   engine: pyarrow
        ...   compact: {small_files: 50}
        ... datasets:
        ...   - path: s3://lake/events
        ...   - path: s3://lake/users
        ...     compact: {target_mb_per_file: 64}
        ... ''')
        >>> [(each.path, each.compact.small_files) for each in load(file).datasets]
        [('s3://lake/events', 50), ('s3://lake/users', 50)]
    """
    name = os.fspath(path)
    document = parse(Path(name).read_text(encoding="utf-8"), name)
    if not isinstance(document.value, dict):
        raise InvalidArgument(f"{name}: expected the keys {quoted(_Outline.model_fields)}")
    checks = _Checks(name)
    outline = checks.of(_Outline, document)
    defaults = Document({})
    if document.value.get("defaults") is not None:
        checks.of(Defaults, document.at("defaults"), ("defaults",), partial=True)
        defaults = document.at("defaults")
    given = document.value.get("datasets")
    found = [
        checks.of(DatasetPolicy, _entry(document.at("datasets", at)).over(defaults), ("datasets", at))
        for at in range(len(given) if isinstance(given, list) else 0)
    ]
    checks.finish()
    assert outline is not None, "without problems there is one"
    folder = os.path.dirname(os.path.abspath(name))
    datasets = [each.below(folder) for each in found if each is not None]
    return PolicyFile(datasets=datasets, budget=outline.budget)


def _entry(given: Document) -> Document:
    """The settings of a dataset; a text is its path."""
    if not isinstance(given.value, str):
        return given
    return Document({"path": given.value}, {(): given.line(()), ("path",): given.line(())})


class _Checks:
    """Collects the problems of a file, to report all of them at once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: dict[tuple[int, str], str] = {}

    def of(self, model: type[Model], part: Document, loc: Loc = (), *, partial: bool = False) -> Model | None:
        """A part of the file as a model; None if it has problems. A partial one may lack keys."""
        settings, problems = validated(model, part.value)
        for inside, message in problems:
            if not (partial and message == MISSING):
                line, key = part.line(inside), key_path((*loc, *inside))
                # Datasets repeat the problems of their defaults.
                found = f"{self._name}, line {line}{f', {key}' if key else ''}: {message}"
                self._found.setdefault((line, message), found)
        return settings

    def finish(self) -> None:
        """Raise if there are problems."""
        if self._found:
            raise InvalidArgument("\n".join(self._found[at] for at in sorted(self._found)))
