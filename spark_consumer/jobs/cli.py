"""The jobs of this package from the command line: `python -m spark_consumer mirror|consume|dump`.

`walgate mirror` starts the same program. With --progress json every batch is one line of JSON on standard output, for programs.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from schemas.names import counted
from spark_consumer.errors import ConsumerError, OptionError, told_by
from spark_consumer.jobs.run import Run, facts_of, line_of, say
from spark_consumer.jobs.settings_file import Settings, load_settings
from spark_consumer.jobs.status import serve
from spark_consumer.lsn import format_lsn, parse_lsn
from spark_consumer.mirror.merging import MERGE_AT_LEAST_EVERY_S, MERGE_EVERY_S, RETENTION_S
from spark_consumer.source.options import MAX_CHANGES

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

Servers = Annotated[str, typer.Option("--bootstrap-servers", help="Kafka brokers.")]
RegistryUrl = Annotated[str, typer.Option("--registry", help="URL of the schema registry (Confluent API).")]
Prefix = Annotated[str, typer.Option(help="Prefix of the topics.")]
Tables = Annotated[str, typer.Option(help="Only these tables (public.orders,public.items). Default: all.")]
Exclude = Annotated[str, typer.Option(help="Exclude these tables (public.tmp_*,staging.*). Wildcards: *, ? and [...].")]
Path_ = Annotated[
    str, typer.Option("--path", "--to", help="Output directory: a local path, or any URL that Spark can write to.")
]
Checkpoint = Annotated[str, typer.Option(help="Checkpoint location of the query. Default: <path>/checkpoint.")]
Limit = Annotated[
    int,
    typer.Option(help="Maximum number of changes per micro-batch. A larger transaction is a micro-batch of its own."),
]
Start = Annotated[
    str, typer.Option(help="Where a query without a checkpoint starts: earliest, latest, marker:, lsn:, time:.")
]
Until = Annotated[str, typer.Option(help="Stop when everything up to this LSN has been written (16/B374D848).")]
Once = Annotated[bool, typer.Option("--once", help="Process the records that are in the topics now, then stop.")]
ProgressKind = Annotated[str, typer.Option(help="lines or json.")]
Option = Annotated[
    list[str], typer.Option("--option", help="An option of the data source, as name=value: kafka.*, registry.*, ...")
]
Jars = Annotated[str, typer.Option(envvar="WALGATE_SPARK_JARS", help="Delta's jars, separated by commas.")]
Master = Annotated[
    str,
    typer.Option(help="Spark master: spark://host:7077, yarn, k8s://... Default: this computer, or spark-submit's."),
]
Conf = Annotated[
    list[str], typer.Option("--conf", help="A Spark configuration property, as name=value. May be repeated.")
]
Memory = Annotated[
    int,
    typer.Option(
        help="Heap size of Spark's driver, in MB (spark.driver.memory). With --master, executors use spark.executor.memory. "
        "Does not apply with spark-submit."
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Show Spark's error log, and the complete error that ends the command.")
]
Cores = Annotated[int, typer.Option(help="Cores of this computer that Spark uses without --master. 0: all.")]

_SETTINGS = "what the settings file says"


def _load(context: typer.Context, path: Path | None) -> Path | None:
    """What --config says becomes the default of the other options."""
    if path is not None:
        try:
            settings = load_settings(path, (item.name or "" for item in context.command.params))
        except OptionError as problem:
            _fail(problem)
        context.default_map = {**(context.default_map or {}), **settings.command}
        context.meta[_SETTINGS] = settings
    return path


def _settings(context: typer.Context) -> Settings:
    found: Settings = context.meta.get(_SETTINGS, Settings())
    return found


Http = Annotated[
    str, typer.Option("--http", help="HOST:PORT on which to serve /livez, /readyz and /metrics. Default: none.")
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="TOML file with these options, and TOML tables named options (of the data source) and conf (Spark "
        "configuration properties).",
        is_eager=True,
        callback=_load,
    ),
]

MergeEvery = Annotated[
    float | None,
    typer.Option(
        help="Seconds between merges, which is how far the Delta tables lag behind for programs that read them "
        f"directly. Default: {MERGE_EVERY_S:.0f}, or up to {MERGE_AT_LEAST_EVERY_S:.0f} if merges would otherwise take more "
        "than a fifth of the time. 0: merge every micro-batch. inf: leave merging to walgate merge."
    ),
]
Retention = Annotated[
    float,
    typer.Option(
        help="Seconds for which a version of the mirror can be read after it was replaced. Older versions are removed."
    ),
]
NoVectors = Annotated[
    bool,
    typer.Option(
        "--no-deletion-vectors",
        help="Create new tables without Delta's deletion vectors, which some readers do not support.",
    ),
]
CatalogName = Annotated[
    str,
    typer.Option(
        "--catalog",
        help="Register each table as schema.table in this Spark catalog, with its directory as the location. Default: none.",
    ),
]

DIFFERS = 3  # exit code: a VERIFY has found differences


@dataclass(frozen=True, slots=True)
class SparkChoice:
    """Which Spark, as the options of a command say."""

    master: str
    conf: list[str]
    jars: str
    memory_mb: int
    cores: int
    verbose: bool
    of_file: Settings

    def session(self, name: str, *, lasting: bool = False) -> Any:
        """`lasting`: for a job of hours. Raises OptionError."""
        from spark_consumer.jobs.session import is_submitted, job_session, local_session, set_up

        if self.jars:
            os.environ["WALGATE_SPARK_JARS"] = self.jars
        if not is_submitted():
            set_up()
        jars = [jar for jar in os.environ.get("WALGATE_SPARK_JARS", "").split(",") if jar]
        conf = {**self.of_file.conf, **dict(_pair("--conf", item) for item in self.conf)}
        if not self.verbose:
            conf.setdefault("spark.log.level", "FATAL")
        secrets = self.of_file.secrets
        if self.master or is_submitted():
            return job_session(name, self.master, jars, memory_mb=self.memory_mb, settings=conf, secrets=secrets)
        return local_session(
            name,
            jars=jars,
            memory_mb=self.memory_mb,
            cores=self.cores or None,
            settings=conf,
            secrets=secrets,
            lasting=lasting,
            delta=True,
        )


@dataclass(frozen=True, slots=True)
class Job:
    """A streaming query from the data source to what `start` gives. `given`: options of the source.

    `reached`: commit LSN up to which a mirror has everything. `finish`: called at the end, with `is_done` where the job has done
    what it was to do.
    """

    name: str
    given: dict[str, str]
    checkpoint: str
    until_lsn: str
    once: bool
    progress: str
    http: str
    spark: SparkChoice
    start: Callable[[Run], Callable[[Any, int], None]]
    reached: Callable[[Any], int | None] | None = None
    finish: Callable[..., None] | None = None


@app.command()
def mirror(
    context: typer.Context,
    bootstrap_servers: Servers,
    registry: RegistryUrl,
    path: Path_,
    prefix: Prefix = "cdc",
    tables: Tables = "",
    exclude: Exclude = "",
    on_recreated: Annotated[
        str,
        typer.Option(
            help="What to do when a table has been dropped and recreated: empty (remove the old rows), stop, or keep-as "
            "(copy the old rows, then remove them)."
        ),
    ] = "empty",
    checkpoint: Checkpoint = "",
    max_changes: Limit = MAX_CHANGES,
    starting_position: Start = "earliest",
    until_lsn: Until = "",
    once: Once = False,
    merge_every: MergeEvery = None,
    retention: Retention = RETENTION_S,
    no_deletion_vectors: NoVectors = False,
    catalog: CatalogName = "",
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Stop at an ALTER TABLE whose effect on existing rows is unknown. Without this option, the mirror only "
            "reports it.",
        ),
    ] = False,
    progress: ProgressKind = "lines",
    option: Option = [],  # noqa: B006 - typer copies it
    master: Master = "",
    conf: Conf = [],  # noqa: B006
    jars: Jars = "",
    memory_mb: Memory = 1024,
    cores: Cores = 0,
    verbose: Verbose = False,
    http: Http = "",
    config: Config = None,
) -> None:
    """Keep Delta tables equal to the source: each micro-batch applies complete transactions."""
    from spark_consumer.mirror.appending import AppendingMirror, taken_in
    from spark_consumer.mirror.batch import Mirror
    from spark_consumer.mirror.catalog import Catalog
    from spark_consumer.mirror.preparing import EMPTY, KEEP_AS, STOP
    from spark_consumer.reader.registry import SchemaCache

    if on_recreated not in (EMPTY, STOP, KEEP_AS):
        _fail(OptionError(f"--on-recreated must be {EMPTY}, {STOP} or {KEEP_AS}, not {on_recreated}"))

    appending: list[AppendingMirror] = []

    def start(run: Run) -> Callable[[Any, int], None]:
        options = run.options
        facts = (
            path,
            SchemaCache(options.registry),
            run.report,
            options.tables,
            options.exclude,
            on_recreated,
            not no_deletion_vectors,
            strict,
            retention,
            Catalog(catalog, path) if catalog else None,
        )
        if merge_every == 0:
            return Mirror(*facts).apply
        if not appending and progress == "lines":
            print(_told_of_merges(merge_every), flush=True)
        while appending:
            appending.pop().stop()
        appending.append(AppendingMirror(*facts, merge_every, run.retrying, run.handed_over))
        run.check = appending[-1].check
        return appending[-1].apply

    def finish(spark: Any, *, is_done: bool) -> None:
        for one in appending:
            one.finish(spark, merge=is_done)

    given = source_options(
        bootstrap_servers,
        registry,
        prefix,
        tables,
        exclude,
        max_changes,
        starting_position,
        option,
        _settings(context).options,
    )
    given["includeMarkers"] = "true"
    _run(
        Job(
            "walgate mirror",
            given,
            checkpoint or f"{path}/checkpoint",
            until_lsn,
            once,
            progress,
            http,
            SparkChoice(master, conf, jars, memory_mb, cores, verbose, _settings(context)),
            start,
            lambda spark: taken_in(spark, path),
            finish,
        )
    )


def _told_of_merges(merge_every: float | None) -> str:
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
    catalog: CatalogName = "",
    progress: ProgressKind = "lines",
    master: Master = "",
    conf: Conf = [],  # noqa: B006
    jars: Jars = "",
    memory_mb: Memory = 1024,
    cores: Cores = 0,
    verbose: Verbose = False,
    config: Config = None,
) -> None:
    """Merge appended changes into the tables of a mirror. A running mirror continues to append,
    and leaves these merges to this command."""
    from spark_consumer.mirror.appending import merge_once
    from spark_consumer.mirror.catalog import Catalog

    try:
        _check_progress(progress)
        spark = SparkChoice(master, conf, jars, memory_mb, cores, verbose, _settings(context)).session("walgate merge")
        of_catalog = Catalog(catalog, path) if catalog else None
        reached = merge_once(
            spark, path, lambda done: say(progress, facts_of(done), line_of(done)), retention, of_catalog
        )
        if reached is None:
            say(progress, {"merged_lsn": None}, "the mirror has no changes yet")
        else:
            told = f"all changes up to {format_lsn(reached)} are in the tables"
            say(progress, {"merged_lsn": format_lsn(reached)}, told)
        spark.stop()
    except ConsumerError as problem:
        _fail(problem)


@app.command()
def consume(
    context: typer.Context,
    bootstrap_servers: Servers,
    registry: RegistryUrl,
    path: Path_,
    prefix: Prefix = "cdc",
    tables: Tables = "",
    exclude: Exclude = "",
    format: Annotated[str, typer.Option(help="delta or parquet.")] = "parquet",  # noqa: A002 - the option's name
    checkpoint: Checkpoint = "",
    max_changes: Limit = MAX_CHANGES,
    starting_position: Start = "earliest",
    until_lsn: Until = "",
    once: Once = False,
    progress: ProgressKind = "lines",
    option: Option = [],  # noqa: B006
    master: Master = "",
    conf: Conf = [],  # noqa: B006
    jars: Jars = "",
    memory_mb: Memory = 1024,
    cores: Cores = 0,
    verbose: Verbose = False,
    http: Http = "",
    config: Config = None,
) -> None:
    """Append every committed change to the changelog of its table."""
    from spark_consumer.changelog.writer import Changelog
    from spark_consumer.reader.registry import SchemaCache

    if format not in ("delta", "parquet"):
        _fail(OptionError(f"--format must be delta or parquet, not {format}"))

    def start(run: Run) -> Callable[[Any, int], None]:
        return Changelog(path, format, SchemaCache(run.options.registry), run.report).apply

    given = source_options(
        bootstrap_servers,
        registry,
        prefix,
        tables,
        exclude,
        max_changes,
        starting_position,
        option,
        _settings(context).options,
    )
    _run(
        Job(
            "walgate consume",
            given,
            checkpoint or f"{path}/checkpoint",
            until_lsn,
            once,
            progress,
            http,
            SparkChoice(master, conf, jars, memory_mb, cores, verbose, _settings(context)),
            start,
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
    from spark_consumer.mirror.dump import dump_json, dump_parquet

    try:
        if to:
            dump_parquet(Path(path), table, Path(to))
        else:
            dump_json(Path(path), table, sys.stdout)
    except ConsumerError as problem:
        _fail(problem)


def source_options(
    servers: str,
    registry: str,
    prefix: str,
    tables: str,
    exclude: str,
    max_changes: int,
    start: str,
    more: list[str],
    of_file: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Options of the data source from those of a command, and of its settings file. Raises OptionError."""
    options = {
        "kafka.bootstrap.servers": servers,
        "registry.url": registry,
        "prefix": prefix,
        "maxChangesPerTrigger": str(max_changes),
        "startingPosition": start,
    }
    if tables:
        options["tables"] = tables
    options |= of_file or {}
    for item in more:
        name, value = _pair("--option", item)
        options[name] = value
    if exclude:
        options["exclude"] = exclude
    return options


def _pair(option: str, item: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not equals:
        _fail(OptionError(f"{option} {item} is not name=value"))
    return name, value


def _run(job: Job) -> None:
    """Until the job has done what it was to do, or is stopped; an error ends the process."""
    from pyspark.errors import PySparkException

    from spark_consumer.source.options import parse_options

    try:
        _check_progress(job.progress)
        until = parse_lsn(job.until_lsn) if job.until_lsn else None
        run = Run(parse_options(job.given, streaming=True), until, job.progress)
        if job.http:
            serve(run.status, job.http)
        run.stop_on_signals()
        run.wait_for_topic()
        if not run.stopping.is_set():
            _keep_up(job, run)
    except (ConsumerError, ValueError) as problem:
        _fail(problem)
    except PySparkException as problem:
        told = told_by(str(problem))
        if job.spark.verbose or told is None:
            raise
        _fail(told)


def _keep_up(job: Job, run: Run) -> None:
    from spark_consumer.source.options import parse_options

    spark, given = job.spark.session(job.name, lasting=not job.once), job.given
    run.stop_on_signals()  # PySpark has set a handler of its own for SIGINT
    last = None if job.reached is None else job.reached(spark)
    if last is not None:
        run.begins_behind(last)
        if given["startingPosition"] == "earliest":
            # Of a new checkpoint; an old one knows better.
            given = {**given, "startingPosition": f"lsn:{last}"}
            run.options = parse_options(given, streaming=True)

    def query() -> Any:
        frame = spark.readStream.format("walgate").options(**given).load()
        writer = frame.writeStream.foreachBatch(run.interruptible(job.start(run))).option(
            "checkpointLocation", job.checkpoint
        )
        writer = writer.queryName(job.name)
        return (writer.trigger(availableNow=True) if job.once else writer.trigger(processingTime="0 seconds")).start()

    run.keep_up(query, outages=not job.once)
    if job.finish is not None:
        job.finish(spark, is_done=(job.once or bool(job.until_lsn)) and not run.stopping.is_set())
    spark.stop()
    if run.differences:
        _fail(
            f"VERIFY snapshots found {counted(run.differences, 'difference')} between the source and the mirror (some may have "
            "been repaired since): see the directory differences of the mirror",
            DIFFERS,
        )


def _check_progress(progress: str) -> None:
    """Raises OptionError."""
    if progress not in ("lines", "json"):
        raise OptionError(f"--progress must be lines or json, not {progress}")


def _fail(problem: Exception | str, code: int = 1) -> NoReturn:
    print(f"walgate: {problem}", file=sys.stderr)
    raise SystemExit(code)
