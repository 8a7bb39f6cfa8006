"""Change the schema of a dataset: rewrite the files that do not have the new one, in one commit."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from parketto.arguments import DEFAULT_CODEC
from parketto.commit.request import CheckAdded
from parketto.commit.transaction import Transaction
from parketto.commit.verify import verify_conformed
from parketto.engines.base import ProgressCallback
from parketto.errors import ColumnNotFound, CommitConflict, InvalidArgument, quoted
from parketto.expressions.casts import named_type
from parketto.operations.context import Backups, DatasetContext, entries
from parketto.operations.edits import in_same_places
from parketto.parquet.clustering_metadata import read_clustering, without_record
from parketto.parquet.dataset_schema import Unified, conformed_metadata, has_layout_of, template_file, unified
from parketto.parquet.decoded_types import decoded_schema
from parketto.parquet.file_format import FileFormat
from parketto.parquet.file_info import FileInfo, PhysicalTraits
from parketto.parquet.output import Output, Replaced, Written
from parketto.parquet.promotion import retyped
from parketto.parquet.row_group_info import writable_codec
from parketto.parquet.spark_schema import renamed_notes
from parketto.results import AlterStats
from parketto.storage.store import FileEntry
from parketto.tasks.conform import ConformFile

#: A type: an Arrow type, or the name of an SQL type.
TypeLike: TypeAlias = pa.DataType | str


@dataclass(frozen=True)
class Changes:
    """What changes about the columns of a dataset."""

    add: Mapping[str, pa.DataType]
    rename: Mapping[str, str]
    drop: tuple[str, ...]
    cast: Mapping[str, pa.DataType]

    @classmethod
    def of(
        cls,
        add: Mapping[str, TypeLike] | None = None,
        rename: Mapping[str, str] | None = None,
        drop: str | Sequence[str] | None = None,
        cast: Mapping[str, TypeLike] | None = None,
    ) -> Changes:
        """The validated changes."""
        dropped = (drop,) if isinstance(drop, str) else tuple(drop or ())
        types = [{name: named_type(kind) for name, kind in (given or {}).items()} for given in (add, cast)]
        renamed = {old: new for old, new in (rename or {}).items() if old != new}
        names: list[object] = [*types[0], *renamed.values()]
        for name in names:
            if not (isinstance(name, str) and name and name.isprintable()):
                raise InvalidArgument(f"{name!r} is not a column name: expected a text of printable characters")
        found = cls(types[0], renamed, dropped, types[1])
        if not (found.add or found.rename or found.drop or found.cast):
            raise InvalidArgument("nothing to alter: pass add, rename, drop or cast")
        return found

    def check(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Refuse changes that do not fit the columns of a dataset."""
        used = [*self.rename, *self.drop, *self.cast]
        if missing := [name for name in used if name not in {*schema.names, *partition_by}]:
            raise ColumnNotFound(missing, schema.names)
        if partitions := [name for name in [*used, *self.add] if name in partition_by]:
            raise InvalidArgument(
                f"{quoted(partitions)}: partition columns are changed by repartition, not by alter"
            )
        if both := sorted(set(self.drop) & {*self.rename, *self.cast}):
            raise InvalidArgument(f"{quoted(both)}: a column that is dropped cannot be renamed or cast")
        after = [self.rename.get(name, name) for name in schema.names if name not in self.drop] + list(self.add)
        if len(set(after)) < len(after):
            twice = sorted({name for name in after if after.count(name) > 1})
            raise InvalidArgument(f"the dataset would have several columns named {quoted(twice)}")
        if not after or set(after) <= set(partition_by):
            raise InvalidArgument("every column would be dropped: at least one must remain in the files")

    def origins(self, schema: pa.Schema) -> dict[str, str]:
        """For each column that remains, by its new name, its old name."""
        return {self.rename.get(name, name): name for name in schema.names if name not in self.drop}

    def applied(self, schema: pa.Schema) -> pa.Schema:
        """A schema after the changes. Columns keep their places; new ones come last."""
        fields = [
            retyped(item, self.cast.get(item.name, item.type)).with_name(self.rename.get(item.name, item.name))
            for item in schema
            if item.name not in self.drop
        ]
        notes = renamed_notes(schema.metadata, self.rename)
        return pa.schema([*fields, *(pa.field(name, kind) for name, kind in self.add.items())], notes or None)


def alter(
    dataset: DatasetContext,
    changes: Changes,
    *,
    dry_run: bool,
    progress: ProgressCallback | None,
    backups: Backups | None = None,
) -> AlterStats:
    """Discover → plan → execute → verify → commit → report."""

    def plan(files: Sequence[FileInfo]) -> list[ConformFile]:
        found = _unified(files, {name: kind for name, kind in changes.cast.items() if name in _names(files)})
        schema = found.files[0].schema
        assert schema is not None, "files to alter come from a snapshot"
        changes.check(schema, [name for name, _ in files[0].partition])
        target = _target(changes, schema, found.files[0])
        return [
            _task(file, target, changes.origins(_schema(file)), "alter")
            for file in files
            if changes.rename or not has_layout_of(file, target)
        ]

    arguments = {
        "add": {name: str(kind) for name, kind in changes.add.items()} or None,
        "rename": dict(changes.rename) or None,
        "drop": list(changes.drop) or None,
        "cast": {name: str(kind) for name, kind in changes.cast.items()} or None,
    }
    return _conform(
        dataset,
        "alter",
        plan,
        arguments,
        dry_run=dry_run,
        progress=progress,
        backups=backups,
        check_added=_refuse_added,
    )


def _refuse_added(added: Sequence[FileEntry], who: Callable[[str], str]) -> None:
    """Refuse files that were added meanwhile: they have the schema before the change."""
    for entry in added[:1]:
        raise CommitConflict.because_of(
            entry.path, operation="alter", matters="has the schema before the change", who=who(entry.path)
        )


def unify_schema(
    dataset: DatasetContext,
    cast: Mapping[str, TypeLike] | None,
    *,
    dry_run: bool,
    progress: ProgressCallback | None,
    backups: Backups | None = None,
    directories: Container[str] | None = None,
) -> AlterStats:
    """Rewrite the files that do not have the dataset's schema: all, or those in some directories."""
    types = {name: named_type(kind) for name, kind in (cast or {}).items()}

    def plan(files: Sequence[FileInfo]) -> list[ConformFile]:
        if missing := [name for name in types if name not in _names(files)]:
            raise ColumnNotFound(missing, _names(files))
        found = _unified(files, types)
        return [
            _task(file.stored, file, {name: name for name in _schema(file.stored).names}, "unify")
            for file in found.files
            if file.own is not None and (directories is None or file.directory in directories)
        ]

    arguments = {"cast": {name: str(kind) for name, kind in types.items()} or None}
    return _conform(dataset, "unify_schema", plan, arguments, dry_run=dry_run, progress=progress, backups=backups)


def _unified(files: Sequence[FileInfo], types: Mapping[str, pa.DataType]) -> Unified:
    """The files in one schema, with some types given; refuses types that Parquet does not have."""
    try:
        found = unified(files, types)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument(f"a type cannot be stored in Parquet: {error}") from error
    for name, kind in types.items():
        _check_stored(name, kind, _schema(found.files[0]))
    return found


def _check_stored(name: str, kind: pa.DataType, schema: pa.Schema) -> None:
    if (stored := schema.field(name).type) != kind:
        raise InvalidArgument(f"Parquet has no {kind} for {name!r}; use {stored}")


def _target(changes: Changes, schema: pa.Schema, file: FileInfo) -> FileInfo:
    """An empty file with the schema after the changes; refuses types that Parquet does not have."""
    wanted = changes.applied(schema)
    try:
        target = template_file(wanted, _traits_after(file, changes))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument(f"a type cannot be stored in Parquet: {error}") from error
    for item in wanted:
        _check_stored(item.name, item.type, _schema(target))
    return target


def _schema(file: FileInfo) -> pa.Schema:
    assert file.schema is not None, "files to alter come from a snapshot"
    return file.schema


def _names(files: Sequence[FileInfo]) -> list[str]:
    return list(dict.fromkeys(name for file in files for name in _schema(file).names))


def _traits_after(file: FileInfo, changes: Changes) -> PhysicalTraits:
    """The physical layout after the changes, under the new names."""
    gone = {*changes.drop, *changes.cast}
    rename = {old.encode(): new.encode() for old, new in changes.rename.items()}
    return file.traits._replace(
        int96=tuple(
            (changes.rename.get(name, name), number) for name, number in file.traits.int96 if name not in gone
        ),
        annotations=tuple(
            ((rename.get(path[0], path[0]), *path[1:]), logical)
            for path, logical in file.traits.annotations
            if path[0].decode() not in gone
        ),
    )


def _task(file: FileInfo, target: FileInfo, origins: Mapping[str, str], prefix: str) -> ConformFile:
    schema = _schema(target)
    metadata: Mapping[bytes, bytes] = conformed_metadata(file, target, origins)
    clustering = read_clustering(file.metadata)
    # The record holds only if its columns are still the same.
    if clustering is not None and not all(
        origins.get(name) == name and _schema(file).field(name).type == schema.field(name).type
        for name in clustering.columns
    ):
        metadata = without_record(metadata)
    decoded = decoded_schema(schema)
    codec = writable_codec(file.codec) or DEFAULT_CODEC
    file_format = FileFormat(decoded, codec, metadata, target.traits, readable_as=schema)
    kept = {new: old for new, old in origins.items() if new in schema.names}
    task = ConformFile(file, kept, Output(file.directory, file_format, decoded, prefix=prefix))
    task.check_types()
    return task


def _conform(
    dataset: DatasetContext,
    operation: str,
    planner: Callable[[Sequence[FileInfo]], list[ConformFile]],
    arguments: Mapping[str, object],
    *,
    dry_run: bool,
    progress: ProgressCallback | None,
    backups: Backups | None,
    check_added: CheckAdded | None = None,
) -> AlterStats:
    """Rewrite files in another schema."""
    dataset.check_exists()
    if dry_run:
        files = dataset.snapshot(own_schemas=True).files
        tasks = planner(files)
        paths = sorted(posixpath.relpath(task.file.path, dataset.root) for task in tasks)
        return AlterStats(**{**_stats(files, tasks, dry_run=True), "rewritten_files": paths})

    def attempt(transaction: Transaction) -> AlterStats:
        files = dataset.snapshot_in(transaction, own_schemas=True).files
        tasks = planner(files)
        inputs = entries([task.file for task in tasks])
        with transaction.conflicts_over(inputs):
            results = dataset.engine.run(tasks, dataset.context(transaction, progress))
        staged = [result.staged for result in results]
        verify_conformed(dataset.store, [(task.file, task.output) for task in tasks], staged)
        stats = _stats(files, tasks, dry_run=False)
        if staged:
            rewritten = [
                Replaced((task.file,), Written((file,), task.file.num_rows))
                for task, file in zip(tasks, staged, strict=True)
            ]
            named = in_same_places(operation, rewritten, [file.path for file in files])
            transaction.commit(named, inputs, check_added=check_added, statistics=stats)
        return AlterStats(**{**stats, "backup_path": transaction.backup_path})

    return dataset.run(dataset.request(operation, arguments), attempt, backups=backups)


def _stats(files: Sequence[FileInfo], tasks: Sequence[ConformFile], *, dry_run: bool) -> AlterStats:
    return AlterStats(
        files_before=len(files),
        files_rewritten=len(tasks),
        rewritten_bytes=sum(task.size_bytes for task in tasks),
        dry_run=dry_run,
        backup_path=None,
    )
