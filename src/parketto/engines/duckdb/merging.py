"""Join merge in DuckDB: the source becomes a table, joined with the target's keys; both may exceed memory.

A merge creates the tables `source` (distinct source rows in exchange types), `matches` (the file and row of each
match of a source row, and whether the source row replaces that row), and `edits` (the changes of each file with
their new values, sorted by file and row).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.types as pat

from parketto.engines.base import Context, TaskEngine
from parketto.engines.duckdb.arrow_input import feed_rows
from parketto.engines.duckdb.scanning import (
    FILE_NAME,
    FILE_ROW,
    can_open,
    is_exact,
    local_paths,
    numbered,
    view_files,
)
from parketto.engines.duckdb.session import Session
from parketto.merge.clauses import Clauses
from parketto.merge.join import (
    SOURCE_FIELDS,
    TARGET_FIELDS,
    Edited,
    FileCounts,
    SourceColumns,
    TargetColumns,
    edit_files,
    join_outcome,
    numbered_groups,
    pieces_by_file,
    planned_outcome,
    rows_left,
)
from parketto.merge.keys import SortedKeys, matchable, may_share_key
from parketto.merge.rules import duplicate_keys
from parketto.merge.target import MergeOutcome, MergeTarget
from parketto.parquet.decoded_types import decoded_type
from parketto.parquet.exchange_types import ExtraColumns, exchange_name, exchange_type, from_exchange
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Written
from parketto.parquet.row_source import ArrowRows, FileRows
from parketto.runtime.task import Worker
from parketto.tasks.write import write_rows

_MAX_PRUNING_KEYS = 1_000_000  # with more source keys, files are pruned by the range of keys only


class Merge:
    """One merge. No other operation uses the database of `session`."""

    def __init__(self, engine: TaskEngine, session: Session, target: MergeTarget, context: Context) -> None:
        self._engine, self._session, self._target, self._context = engine, session, target, context
        self._schema = target.source_schema
        self._columns = [exchange_name(at) for at in range(len(self._schema.names))]
        # Floats are matched by a normalized column, in which there is one NaN and one zero.
        self._floats = {
            name: f"k{at}" for at, name in enumerate(target.rules.keys) if pat.is_floating(self._type(name))
        }
        self._float_fields = [
            pa.field(column, pa.float32() if pat.is_float16(self._type(name)) else self._type(name))
            for name, column in self._floats.items()
        ]
        self._keys = [self._floats.get(name) or self._exchange_column(name) for name in target.rules.keys]
        self._payload = ", ".join(self._columns[: len(target.row_schema.names)])
        self._string_spec = replace(target.spec, path_only={name: pa.string() for name in target.spec.path_only})

    def run(self, source: ArrowRows | FileRows, worker: Worker) -> MergeOutcome:
        """Load the source, match, rewrite the files with matches, and write the new rows."""
        self._load_source(source, worker)
        ranges = self._ranges
        scanned = self._match(worker)
        inserted, moved, folders = self._additions()
        self._target.refuse_unfilled(inserted)
        if self._target.dry_run:
            return planned_outcome(self._target, self._counts(), inserted, folders, ranges, scanned)
        edited = self._rewrite() if self._target.rules.edits else Edited.total(())
        added = self._add(worker) if inserted + moved else Written()
        return join_outcome(self._target, edited, added, inserted, moved, ranges, scanned)

    def _load_source(self, source: ArrowRows | FileRows, worker: Worker) -> None:
        """Create the table `source`: checked, with distinct keys."""
        rules, session = self._target.rules, self._session
        added = _WithKeys(SourceColumns(self._target), self._floats)
        fields = [*SOURCE_FIELDS, *self._float_fields]
        feed_rows(session, "incoming", source, self._schema, worker, added, fields)
        if not rules.deduplicates:
            session.run("CREATE TABLE source AS SELECT * FROM incoming")
            self._refuse_duplicates()
            return
        session.run("CREATE TABLE received AS SELECT * FROM incoming")
        newest = [f"{self._exchange_column(name)} DESC NULLS LAST" for name in rules.order_by]
        session.run(
            f"CREATE TABLE source AS SELECT * FROM received QUALIFY row_number() OVER "
            f"(PARTITION BY {', '.join(self._keys)} ORDER BY {', '.join([*newest, 'seq DESC'])}) = 1"
        )
        session.run("DROP TABLE received")

    def _refuse_duplicates(self) -> None:
        keys, rules = ", ".join(self._keys), self._target.rules
        twice = f"SELECT {keys} FROM source GROUP BY {keys} HAVING count(*) > 1"
        found = self._session.all_rows(f"SELECT {keys}, count(*) OVER () AS keys FROM ({twice}) LIMIT 1")
        if found.num_rows:
            example = self._unpacked(found.select(self._keys), rules.keys).to_pylist()[0]
            raise duplicate_keys(rules.strategy, rules.keys, example, found.column("keys")[0].as_py())

    def _type(self, name: str) -> pa.DataType:
        return self._schema.field(name).type

    def _exchange_column(self, name: str) -> str:
        return exchange_name(self._schema.get_field_index(name))

    def _unpacked(self, rows: pa.Table, columns: Sequence[str]) -> pa.Table:
        schema = pa.schema([self._schema.field(name) for name in columns])
        return pa.Table.from_batches([from_exchange(batch, schema) for batch in rows.to_batches()], schema)

    @cached_property
    def _ranges(self) -> Mapping[str, tuple[pa.Scalar, pa.Scalar]]:
        """Minimum and maximum of each source key, where they can be compared with footers."""
        names = [
            name
            for name in self._target.rules.keys
            if name not in self._target.spec.path_only and _has_bounds(self._type(name))
        ]
        found: dict[str, tuple[pa.Scalar, pa.Scalar]] = {}
        for name in names:
            column = self._exchange_column(name)
            rows = self._session.all_rows(
                f"SELECT min({column}) AS low, max({column}) AS high, count(*) - count({column}) AS nulls "
                "FROM source"
            )
            if rows.column("nulls")[0].as_py():  # NULL keys match those of files, which bounds do not show
                continue
            low, high = (self._unpacked(rows.select([end]), [name]).column(name)[0] for end in ("low", "high"))
            if low.is_valid:
                found[name] = (low, high)
        return found

    def _match(self, worker: Worker) -> int:
        """Create the table `matches`: target rows with a source key. Returns the number of files read."""
        session, files = self._session, self._candidates()
        session.run(
            "CREATE TABLE found (seq BIGINT, file INTEGER, row BIGINT, same_folder BOOLEAN, "
            "updates BOOLEAN, untouched BOOLEAN)"
        )
        scanned = [position for position in files if self._can_scan(self._target.files[position])]
        if scanned:
            self._match_by_scan(scanned)
        if rest := sorted(set(files) - set(scanned)):
            self._match_by_stream(rest, worker)
        # Of several rows that a source row updates, the first in its folder stays.
        session.run(
            "CREATE TABLE matches AS SELECT seq, file, row, untouched, "
            "updates AND same_folder AND place = 1 AS in_place, "
            "updates AND NOT same_folder AND place = 1 AS moved FROM (SELECT *, row_number() OVER "
            "(PARTITION BY seq, updates ORDER BY same_folder DESC, file, row) AS place FROM found)"
        )
        session.run("DROP TABLE found")
        return len(files)

    def _candidates(self) -> list[int]:
        """The positions of files that may contain a source key, according to their footers."""
        keys = self._target.rules.keys
        found = [
            position for position, file in enumerate(self._target.files) if may_share_key(file, keys, self._ranges)
        ]
        first = keys[0]
        count = self._session.all_rows("SELECT count(*) AS n FROM source").column("n")[0].as_py()
        if first not in self._ranges or count > _MAX_PRUNING_KEYS:
            return found
        rows = self._session.all_rows(f"SELECT {self._keys[0]} FROM source ORDER BY 1")
        source_keys = SortedKeys(self._unpacked(rows, [first]), first)
        return [position for position in found if self._has_any(self._target.files[position], source_keys)]

    def _has_any(self, file: FileInfo, keys: SortedKeys) -> bool:
        start, stop = keys.span(file)
        unknown = any(file.column_stats(name).null_count is None for name in self._inside())
        return start < stop or (unknown and not self._target.rules.null_keys_match)

    def _inside(self) -> list[str]:
        return [name for name in self._target.rules.keys if name not in self._target.spec.path_only]

    def _can_scan(self, file: FileInfo) -> bool:
        """Whether DuckDB can scan the keys of a file: only keys whose equality is bitwise."""
        kinds = [decoded_type(self._type(name)) for name in self._target.rules.keys]
        return (
            len(self._inside()) == len(kinds)
            and all(is_exact(kind) and (pat.is_decimal(kind) or exchange_type(kind) == kind) for kind in kinds)
            and not self._floats
            # Conditions need other columns, and Arrow evaluates them.
            and not self._target.judges
            and self._target.scope is None
            and can_open(self._context.store, file)
            # The join would skip NULL keys.
            and all(file.column_stats(name).null_count == 0 for name in self._inside())
        )

    def _match_by_scan(self, positions: Sequence[int]) -> None:
        session, target, store = self._session, self._target, self._context.store
        files = [target.files[position] for position in positions]
        view_files(session, "scanned", store, files)
        session.table(
            "places",
            pa.table(
                {
                    "path": local_paths(store, files),
                    "file": pa.array(positions, pa.int32()),
                    "file_folder": pa.array([target.folder_of(file) for file in files], pa.string()),
                }
            ),
        )
        keys = numbered(self._schema, target.rules.keys)
        session.run(
            f"INSERT INTO found SELECT hit.seq, places.file, hit.row, "
            f"{self._same_folder('hit.folder', 'places.file_folder')}, true, false FROM "
            f"(SELECT source.seq, source.folder, t.name, t.row FROM source JOIN "
            f"(SELECT {keys}, {FILE_NAME} AS name, {FILE_ROW} AS row FROM scanned) AS t "
            f"ON {self._same_keys('source', 't')}) AS hit JOIN places ON places.path = hit.name"
        )

    def _match_by_stream(self, positions: Sequence[int], worker: Worker) -> None:
        target = self._target
        read = pa.schema([self._schema.field(name) for name in target.matched_columns])
        rows = FileRows(read, self._context.store, target.files, self._string_spec)
        added = _WithKeys(TargetColumns(target), self._floats)
        fields = [*TARGET_FIELDS, *self._float_fields]
        feed_rows(self._session, "streamed", rows, read, worker, added, fields, only=positions)
        named = ", ".join(
            f"{self._floats.get(name) or exchange_name(at)} AS t{at}" for at, name in enumerate(target.rules.keys)
        )
        equals = "IS NOT DISTINCT FROM" if target.rules.null_keys_match else "="
        same = " AND ".join(f"source.{key} {equals} t.t{at}" for at, key in enumerate(self._keys))
        same += " AND t.in_scope"
        same_folder = self._same_folder("source.folder", "t.file_folder")
        if target.judges:
            self._judge(named, same, same_folder, read)
            return
        self._session.run(
            f"INSERT INTO found SELECT source.seq, t.file, t.row, {same_folder}, true, false "
            f"FROM source JOIN (SELECT {named}, file, row, file_folder, in_scope FROM streamed) AS t ON {same}"
        )

    def _judge(self, keys: str, same: str, same_folder: str, read: pa.Schema) -> None:
        """Match streamed rows, and let Arrow evaluate the conditions on each pair."""
        clauses = self._target.clauses
        assert clauses is not None, "there are conditions"
        sources = pa.schema([self._schema.field(name) for name in clauses.source_columns])
        columns = [f"source.{self._exchange_column(name)} AS s{at}" for at, name in enumerate(sources.names)]
        columns += [f"t.{exchange_name(at)} AS {exchange_name(at)}" for at in range(len(read.names))]
        values = ", ".join(exchange_name(at) for at in range(len(read.names)))
        self._session.run(
            f"CREATE TABLE pairs AS SELECT source.seq, t.file, t.row, {same_folder} AS same_folder, "
            f"{', '.join(columns)} FROM source JOIN "
            f"(SELECT {keys}, {values}, file, row, file_folder, in_scope FROM streamed) AS t ON {same}"
        )
        pairs = self._session.cursor().rows("SELECT * FROM pairs")
        fields = [("seq", pa.int64()), ("file", pa.int32()), ("row", pa.int64()), ("same_folder", pa.bool_())]
        schema = pa.schema([*fields, ("updates", pa.bool_()), ("untouched", pa.bool_())])
        self._session.feed("judged", schema, (_judged(batch, clauses, sources, read, schema) for batch in pairs))
        self._session.run("INSERT INTO found SELECT * FROM judged")
        self._session.run("DROP TABLE pairs")

    def _same_folder(self, folder: str, file_folder: str) -> str:
        return "true" if self._target.change.moves == "never" else f"{folder} = {file_folder}"

    def _same_keys(self, one: str, other: str) -> str:
        return " AND ".join(f"{one}.{key} = {other}.{key}" for key in self._keys)

    def _rewrite(self) -> Edited:
        """Rewrite the files with matches, in parallel."""
        session = self._session
        values = ", ".join(f"source.{name}" for name in self._columns[: len(self._target.row_schema.names)])
        # Rows that stay as they are need no edit, unless the others are deleted.
        wanted = "true" if self._target.rules.removes_missing else "NOT matches.untouched"
        # If only some columns change, a moved row takes its other values from its file.
        moves_out = "false" if self._target.change.updated is None else "matches.moved"
        session.run(
            f"CREATE TABLE edits AS SELECT matches.file, matches.row, matches.in_place, {moves_out} AS moves_out, "
            f"matches.untouched, {values} FROM matches LEFT JOIN source ON source.seq = "
            f"CASE WHEN matches.in_place OR {moves_out} THEN matches.seq END WHERE {wanted} "
            "ORDER BY matches.file, matches.row"
        )
        # Files whose rows all stay as they are have no edits, unless the others are deleted.
        counts = {
            position: found
            for position, found in self._counts().items()
            if found.matched or self._target.rules.removes_missing
        }
        tasks = [
            _EditFiles(tuple(group), session, self._target, self._target.row_schema, self._payload)
            for group in numbered_groups(self._target, rows_left(self._target, counts))
        ]
        return Edited.total(self._engine.run(tasks, self._context))

    def _counts(self) -> dict[int, FileCounts]:
        """The counts of each file with matches."""
        if not self._target.rules.edits:
            return {}
        found = self._session.all_rows(
            "SELECT file, count(*) FILTER (WHERE NOT matches.untouched) AS matched, "
            "count(*) FILTER (WHERE in_place OR moved) AS replaced, "
            "count(*) FILTER (WHERE matches.in_place) AS in_place, "
            "count(*) FILTER (WHERE matches.untouched) AS untouched FROM matches GROUP BY file"
        )
        return {row.pop("file"): FileCounts(**row) for row in found.to_pylist()}

    def _additions(self) -> tuple[int, int, list[str]]:
        """The number of new rows, the number of moved rows that are added again, and the folders of both."""
        new, moved = self._new_and_moved(with_moves_out=True)
        counts = self._session.all_rows(
            f"SELECT count(*) FILTER (WHERE {new}) AS new, count(*) FILTER (WHERE {moved}) AS moved, "
            f"array_agg(DISTINCT coalesce(folder, '')) FILTER (WHERE {new} OR {moved}) AS folders FROM source"
        ).to_pylist()[0]
        limited = self._target.change.updated is not None
        return counts["new"], 0 if limited else counts["moved"], counts["folders"] or []

    def _new_and_moved(self, *, with_moves_out: bool) -> tuple[str, str]:
        rules = self._target.rules
        new = "insertable AND source.seq NOT IN (SELECT seq FROM matches)" if rules.inserts else "false"
        moves = rules.updates and (with_moves_out or self._target.change.updated is None)
        return new, "source.seq IN (SELECT seq FROM matches WHERE moved)" if moves else "false"

    def _add(self, worker: Worker) -> Written:
        """Write the new rows, and those whose partition changed."""
        new, moved = self._new_and_moved(with_moves_out=False)
        order = "folder, seq" if self._target.spec.partition_by else "seq"
        query = f"SELECT {self._payload} FROM source WHERE {new} OR {moved} ORDER BY {order}"
        rows = (from_exchange(batch, self._target.row_schema) for batch in self._session.rows(query))
        output = self._target.additions
        return write_rows(rows, output, worker, at_least_one=False, in_partition_order=True)


@dataclass(frozen=True)
class _EditFiles:
    """Rewrite neighbouring files of the target from the table `edits`."""

    positions: tuple[int, ...]
    session: Session
    target: MergeTarget
    schema: pa.Schema
    payload: str

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The files."""
        return tuple(self.target.files[position] for position in self.positions)

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return sum(file.size_bytes for file in self.files)

    def run(self, worker: Worker) -> Edited:
        """Read the edits through this thread's own connection, and rewrite the files."""
        query = (
            f"SELECT file, row, in_place, moves_out, untouched, {self.payload} FROM edits "
            f"WHERE file IN ({', '.join(map(str, self.positions))}) ORDER BY file, row"
        )
        pieces = pieces_by_file(self.positions, self.session.cursor().rows(query))
        return edit_files(self.positions, pieces, self.target, self.schema, worker)


def _judged(
    pairs: pa.RecordBatch, clauses: Clauses, sources: pa.Schema, read: pa.Schema, schema: pa.Schema
) -> pa.RecordBatch:
    """The pairs with what happens to their target rows."""
    one = from_exchange(pairs.select([f"s{at}" for at in range(len(sources.names))]), sources)
    other = from_exchange(pairs.select([exchange_name(at) for at in range(len(read.names))]), read)
    # Without columns, a batch has no rows.
    verdicts = clauses.judge(one if sources.names else other, other)
    found = [pa.array(verdicts.updates), pa.array(~verdicts.edits)]
    return pa.RecordBatch.from_arrays([*pairs.select(schema.names[:4]).columns, *found], schema=schema)


@dataclass(frozen=True)
class _WithKeys:
    """Adds normalized columns for keys whose equality is not bitwise."""

    added: ExtraColumns
    columns: Mapping[str, str]

    def __call__(
        self, file: FileInfo | None, position: int, row: int, batch: pa.RecordBatch
    ) -> dict[str, pa.Array]:
        keys = {column: matchable(batch.column(name)) for name, column in self.columns.items()}
        return self.added(file, position, row, batch) | keys


def _has_bounds(kind: pa.DataType) -> bool:
    return not (pat.is_floating(kind) or pat.is_fixed_size_binary(kind) or pat.is_decimal256(kind))
