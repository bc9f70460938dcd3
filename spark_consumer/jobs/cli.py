"""The command line of this package's jobs: `python -m spark_consumer
mirror|merge|consume|dump|versions`.

`walgate mirror` runs the same program. With --progress json, each batch is one line of JSON on
standard output, for other programs.
"""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schemas.lsn import format_lsn, parse_lsn
from schemas.topic_names import counted
from spark_consumer.errors import ConsumerError, OptionError, told_by
from spark_consumer.jobs import options
from spark_consumer.jobs.options import SparkChoice, check_progress, fail, settings_of, source_options
from spark_consumer.jobs.run import Run, facts_of, line_of, say
from spark_consumer.jobs.status import serve
from spark_consumer.mirror.merge.merge_thread import MERGE_EVERY_S
from spark_consumer.mirror.retention import RETENTION_S
from spark_consumer.reader.positions import Position, resolve
from spark_consumer.source.options import MAX_CHANGES

if TYPE_CHECKING:
    from spark_consumer.mirror.mirror_state import MirrorState

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

DIFFERS = 3  # exit code if a VERIFY has found differences


@dataclass(frozen=True, slots=True)
class Job:
    """A streaming query that passes batches of the data source to the function that `start`
    returns. `given`: options of the source.

    `check` checks that the checkpoint fits the output, and returns the state of a mirror, or None.
    `finish` is called at the end; its argument `is_done` is true if the job reached its end, and
    false if it was stopped.
    """

    name: str
    given: dict[str, str]
    path: str
    checkpoint: str
    until_lsn: str
    once: bool
    progress: str
    http: str
    spark: SparkChoice
    start: Callable[[Any, Run], Callable[[Any, int], None]]
    check: Callable[[Any, Run], MirrorState | None]
    finish: Callable[..., None] | None = None


@app.command()
def mirror(
    context: typer.Context,
    bootstrap_servers: options.Servers,
    registry: options.RegistryUrl,
    path: options.Path_,
    prefix: options.Prefix = "cdc",
    tables: options.Tables = "",
    exclude: options.Exclude = "",
    on_recreated: Annotated[
        str,
        typer.Option(
            help="What to do when a table has been dropped and recreated: empty (remove the old rows), stop, or keep-as "
            "(copy the old rows, then remove them).",
            rich_help_panel=options.OUTPUT,
        ),
    ] = "empty",
    checkpoint: options.Checkpoint = "",
    max_changes: options.Limit = MAX_CHANGES,
    starting_position: options.Start = "earliest",
    until_lsn: options.Until = "",
    once: options.Once = False,
    merge_every: options.MergeEvery = None,
    retention: options.Retention = RETENTION_S,
    no_deletion_vectors: options.NoVectors = False,
    catalog: options.CatalogName = "",
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Stop at an ALTER TABLE whose effect on existing rows is unknown, and at a new key of a row whose other "
            "values are unknown. Without this option, the mirror only reports it.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    progress: options.ProgressKind = "lines",
    option: options.Option = [],  # noqa: B006 - typer copies it
    master: options.Master = "",
    conf: options.Conf = [],  # noqa: B006
    jars: options.Jars = "",
    memory_mb: options.Memory = 1024,
    cores: options.Cores = 0,
    verbose: options.Verbose = False,
    http: options.Http = "",
    config: options.Config = None,
) -> None:
    """Keep Delta tables equal to the source: each micro-batch appends complete transactions, which
    merges apply to the tables."""
    from spark_consumer.mirror.append.appending_mirror import AppendingMirror
    from spark_consumer.mirror.mirror_state import state_of
    from spark_consumer.mirror.tables.catalog import Catalog
    from spark_consumer.mirror.tables.prepare_table import EMPTY, KEEP_AS, STOP
    from spark_consumer.reader.registry import SchemaCache

    if on_recreated not in (EMPTY, STOP, KEEP_AS):
        fail(OptionError(f"--on-recreated must be {EMPTY}, {STOP} or {KEEP_AS}, not {on_recreated}"))

    appending: list[AppendingMirror] = []

    def create(run: Run) -> AppendingMirror:
        if progress == "lines":
            print(_told_of_merges(merge_every), flush=True)
        made = AppendingMirror(
            path,
            SchemaCache(run.options.registry),
            run.report,
            run.options.tables,
            run.options.exclude,
            on_recreated,
            not no_deletion_vectors,
            strict,
            retention,
            Catalog(catalog, path) if catalog else None,
            merge_every,
            run.retrying,
            run.handed_over,
            run.working,
            run.merged,
        )
        run.check = made.check
        return made

    def start(spark: Any, run: Run) -> Callable[[Any, int], None]:
        if not appending:  # one for all queries of this process, since the merges go on if a query fails
            appending.append(create(run))
        if not once:  # then `finish` merges what waits
            run.when_available(lambda: appending[0].open(spark))
        return appending[0].apply

    def check(spark: Any, run: Run) -> MirrorState | None:
        from spark_consumer.jobs.checkpoint_checks import check_mirror_has

        state = state_of(spark, path)
        taken_lsn = -1 if state is None else state.commit_lsn
        run.when_available(lambda: check_mirror_has(spark, run, given, location, path, taken_lsn))
        return state

    def finish(spark: Any, *, is_done: bool) -> None:
        for one in appending:
            one.finish(spark, merge=is_done)

    location = checkpoint or f"{path}/checkpoint"
    given = source_options(
        bootstrap_servers,
        registry,
        prefix,
        tables,
        exclude,
        max_changes,
        starting_position,
        option,
        settings_of(context).options,
    )
    given["includeMarkers"] = "true"
    _run(
        Job(
            "walgate mirror",
            given,
            path,
            location,
            until_lsn,
            once,
            progress,
            http,
            SparkChoice(master, conf, jars, memory_mb, cores, verbose, settings_of(context)),
            start,
            check,
            finish,
        )
    )


def _told_of_merges(merge_every: float | None) -> str:
    if merge_every == 0:
        return "tables are merged after every micro-batch"
    every = MERGE_EVERY_S if merge_every is None else merge_every
    merged = f"every {every:g} s" if math.isfinite(every) else "by walgate merge"
    if merge_every is None:
        merged += " (less often if merges take long)"
    return (
        f"tables are merged {merged}: programs that read them directly see the "
        "state as of the last merge; spark_consumer.mirror.versions.read sees every micro-batch"
    )


@app.command()
def merge(
    context: typer.Context,
    path: Annotated[str, typer.Option("--path", "--to", help="Directory of a mirror.")],
    retention: Annotated[
        float | None,
        typer.Option(
            help="Seconds for which a version of the mirror can be read after it was replaced. Default: what walgate mirror "
            "was given."
        ),
    ] = None,
    catalog: options.CatalogName = "",
    progress: options.ProgressKind = "lines",
    master: options.Master = "",
    conf: options.Conf = [],  # noqa: B006
    jars: options.Jars = "",
    memory_mb: options.Memory = 1024,
    cores: options.Cores = 0,
    verbose: options.Verbose = False,
    config: options.Config = None,
) -> None:
    """Merge appended changes into the tables of a mirror. A running mirror continues to append,
    and leaves these merges to this command."""
    from spark_consumer.mirror import progress_lines as mirror_progress
    from spark_consumer.mirror.merge.merge_command import merge_once
    from spark_consumer.mirror.tables.catalog import Catalog

    try:
        check_progress(progress)
        spark = SparkChoice(master, conf, jars, memory_mb, cores, verbose, settings_of(context)).session(
            "walgate merge"
        )
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))  # as after Ctrl-C, the merges are given back
        of_catalog = Catalog(catalog, path) if catalog else None
        reached = merge_once(
            spark,
            path,
            lambda done: say(progress, facts_of(done), line_of(done)),
            retention,
            of_catalog,
            lambda made: say(progress, mirror_progress.facts_of(made), mirror_progress.line_of(made)),
        )
        if reached is None:
            say(progress, {"merged_lsn": None}, "the mirror has no changes yet")
        else:
            told = f"all changes up to {format_lsn(reached)} are in the tables"
            say(progress, {"merged_lsn": format_lsn(reached)}, told)
        spark.stop()
    except ConsumerError as problem:
        fail(problem)


@app.command()
def consume(
    context: typer.Context,
    bootstrap_servers: options.Servers,
    registry: options.RegistryUrl,
    path: options.Path_,
    prefix: options.Prefix = "cdc",
    tables: options.Tables = "",
    exclude: options.Exclude = "",
    format: Annotated[str, typer.Option(help="delta or parquet.")] = "parquet",  # noqa: A002 - the option's name
    checkpoint: options.Checkpoint = "",
    max_changes: options.Limit = MAX_CHANGES,
    starting_position: options.Start = "earliest",
    until_lsn: options.Until = "",
    once: options.Once = False,
    progress: options.ProgressKind = "lines",
    option: options.Option = [],  # noqa: B006
    master: options.Master = "",
    conf: options.Conf = [],  # noqa: B006
    jars: options.Jars = "",
    memory_mb: options.Memory = 1024,
    cores: options.Cores = 0,
    verbose: options.Verbose = False,
    http: options.Http = "",
    config: options.Config = None,
) -> None:
    """Append every committed change to the changelog of its table."""
    from spark_consumer.changelog.writer import Changelog
    from spark_consumer.reader.registry import SchemaCache

    if format not in ("delta", "parquet"):
        fail(OptionError(f"--format must be delta or parquet, not {format}"))

    changelogs: list[Changelog] = []

    def start(_spark: Any, run: Run) -> Callable[[Any, int], None]:
        if not changelogs:  # one for all queries of this process, which thereby opens the changelog once
            changelogs.append(Changelog(path, format, SchemaCache(run.options.registry), run.report))
        return changelogs[0].apply

    def check(spark: Any, run: Run) -> None:
        from spark_consumer.jobs.checkpoint_checks import check_changelog_continues

        run.when_available(lambda: check_changelog_continues(spark, run, location, path))

    location = checkpoint or f"{path}/checkpoint"
    given = source_options(
        bootstrap_servers,
        registry,
        prefix,
        tables,
        exclude,
        max_changes,
        starting_position,
        option,
        settings_of(context).options,
    )
    _run(
        Job(
            "walgate consume",
            given,
            path,
            location,
            until_lsn,
            once,
            progress,
            http,
            SparkChoice(master, conf, jars, memory_mb, cores, verbose, settings_of(context)),
            start,
            check,
        )
    )


@app.command()
def dump(
    path: Annotated[str, typer.Option("--mirror", "--path", help="Directory of a mirror.")],
    table: Annotated[list[str], typer.Option("--table", help="Only this table. May be repeated. Default: all.")] = [],  # noqa: B006
    to: Annotated[
        str, typer.Option(help="Write Parquet files to this directory. Default: JSON lines on standard output.")
    ] = "",
) -> None:
    """Write the rows of a local mirror, with exact values and without Spark."""
    from spark_consumer.mirror.local.dump import dump_json, dump_parquet

    try:
        if to:
            dump_parquet(Path(path), table, Path(to))
        else:
            dump_json(Path(path), table, sys.stdout)
    except ConsumerError as problem:
        fail(problem)


@app.command()
def versions(
    path: Annotated[str, typer.Option("--mirror", "--path", help="Directory of a mirror.")],
    sql: Annotated[str, typer.Option(help="Print views of all tables of one version: duckdb or trino.")] = "",
    at: Annotated[
        str, typer.Option(help="Only the last version up to this commit LSN. With --sql, default: the last version.")
    ] = "",
) -> None:
    """List the versions of a local mirror: commit LSN, time of the commit, time of the merge,
    number of tables."""
    from spark_consumer.mirror.local.version_list import listed_versions, version_at, view_statements

    try:
        if sql:
            lines: list[Any] = view_statements(Path(path), at or "latest", sql)
        else:
            lines = [version_at(Path(path), at)] if at else listed_versions(Path(path))
    except (ConsumerError, ValueError) as problem:
        fail(problem)
    print(*lines, sep="\n")


def _run(job: Job) -> None:
    """Run the job until it reaches its end or is stopped; an error ends the process."""
    from pyspark.errors import PySparkException

    from spark_consumer.source.options import parse_options

    try:
        check_progress(job.progress)
        until = parse_lsn(job.until_lsn) if job.until_lsn else None
        run = Run(parse_options(job.given, streaming=True), until, job.progress, waits=not job.once)
        if job.http:
            serve(run.status, job.http)
        run.stop_on_signals()
        run.wait_for_topic()
        if not run.stopping.is_set():
            _run_query(job, run)
    except (ConsumerError, ValueError) as problem:
        fail(problem)
    except PySparkException as problem:
        told = told_by(str(problem))
        if job.spark.verbose or told is None:
            raise
        fail(told)


def _run_query(job: Job, run: Run) -> None:
    from spark_consumer.jobs.checkpoint_checks import TopicNote, check_new_checkpoint, is_new, last_offset
    from spark_consumer.source.datasource import ENDS_AVAILABLE_NOW
    from spark_consumer.source.options import parse_options

    spark, given = job.spark.session(job.name, lasting=not job.once), job.given
    run.stop_on_signals()  # PySpark has set its own handler for SIGINT
    last = job.check(spark, run)
    before = last_offset(spark, job.checkpoint)
    if last is not None:
        run.begins_after(last.commit_lsn, last.commit_time)
        for name, value in (
            ("merged_lsn", last.merged_lsn),
            ("stale_tables", last.stale),
            ("filling_tables", last.filling),
        ):
            run.status.set(name, value)
        if is_new(spark, job.checkpoint):
            taken_lsn = last.commit_lsn
            run.when_available(lambda: check_new_checkpoint(run, taken_lsn))
        if given["startingPosition"] in ("earliest", "latest"):
            # Applies to a new checkpoint only; an existing one has its own offset.
            given = {**given, "startingPosition": f"lsn:{last.commit_lsn}"}
            run.options = parse_options(given, streaming=True)
    elif before is not None:
        run.begins_after(before["commit_lsn"])
    with suppress(ConsumerError):  # only metrics are missing; an error that persists ends the query itself
        taken = None if last is None else resolve(Position("lsn", last.commit_lsn), run.log)
        positions = [taken, None if before is None else before["position"]]
        known = [position for position in positions if position is not None]
        run.begins_at(max(known) if known else resolve(run.options.starting, run.log))

    note = TopicNote(job.path, run.options.marker_topic)

    def query() -> Any:
        frame = spark.readStream.format("walgate").options(**given).load()
        apply = run.interruptible(note.after_first(job.start(spark, run)))
        writer = frame.writeStream.foreachBatch(apply).option("checkpointLocation", job.checkpoint)
        writer = writer.queryName(job.name)
        return (writer.trigger(availableNow=True) if job.once else writer.trigger(processingTime="0 seconds")).start()

    repeats = job.once and not ENDS_AVAILABLE_NOW
    run.run_query(query, until_position=run.log.bounds()[1] if repeats else None)
    if not run.stopping.is_set():
        note.make_up(spark)
    if job.finish is not None:
        job.finish(spark, is_done=(job.once or bool(job.until_lsn)) and not run.stopping.is_set())
    spark.stop()
    if run.differences:
        fail(
            f"VERIFY snapshots found {counted(run.differences, 'difference')} between the source and the mirror (some may have "
            "been repaired since): see the directory differences of the mirror",
            DIFFERS,
        )
