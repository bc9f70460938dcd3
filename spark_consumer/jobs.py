"""The jobs of this package from the command line: `python -m spark_consumer mirror|consume|dump`.

`walgate mirror` starts the same program. With --progress json every batch is one line of JSON on standard output, for programs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from spark_consumer.errors import ConsumerError, OptionError, told_by
from spark_consumer.lsn import parse_lsn
from spark_consumer.run import Run

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Servers = Annotated[str, typer.Option("--bootstrap-servers", help="Kafka brokers.")]
RegistryUrl = Annotated[str, typer.Option("--registry", help="URL of the schema registry (Confluent API).")]
Prefix = Annotated[str, typer.Option(help="Prefix of the topics.")]
Tables = Annotated[str, typer.Option(help="public.orders,public.items: only these; all where empty.")]
Path_ = Annotated[
    str, typer.Option("--path", "--to", help="Folder of the result: local, or any URL that Spark writes to.")
]
Checkpoint = Annotated[str, typer.Option(help="Spark's checkpoint; <path>/checkpoint where empty.")]
Limit = Annotated[int, typer.Option(help="Changes a batch; a larger transaction is still one batch.")]
Start = Annotated[str, typer.Option(help="Of a new checkpoint: earliest, latest, marker:, lsn:, time:.")]
Until = Annotated[str, typer.Option(help="Stop when everything up to this LSN is written (16/B374D848).")]
Once = Annotated[bool, typer.Option(help="Take what is there now, and stop.")]
ProgressKind = Annotated[str, typer.Option(help="lines or json.")]
Option = Annotated[list[str], typer.Option("--option", help="name=value of the data source: kafka.*, registry.*, ...")]
Jars = Annotated[str, typer.Option(envvar="WALGATE_SPARK_JARS", help="Delta's jars, separated by commas.")]
Memory = Annotated[int, typer.Option(help="Heap of Spark, in MB.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Spark's log of errors, and the whole of the one that ends the job.")
]
Cores = Annotated[int, typer.Option(help="Cores of the local Spark; 0: all.")]

MAX_CHANGES = 500_000


@app.command()
def mirror(
    bootstrap_servers: Servers,
    registry: RegistryUrl,
    path: Path_,
    prefix: Prefix = "cdc",
    tables: Tables = "",
    checkpoint: Checkpoint = "",
    max_changes: Limit = MAX_CHANGES,
    starting_position: Start = "earliest",
    until_lsn: Until = "",
    once: Once = False,
    progress: ProgressKind = "lines",
    option: Option = [],  # noqa: B006 - typer copies it
    jars: Jars = "",
    memory_mb: Memory = 1024,
    cores: Cores = 0,
    verbose: Verbose = False,
) -> None:
    """Keep Delta tables equal to the source, to the transaction."""
    from spark_consumer.mirror import pictures
    from spark_consumer.mirror.batch import Mirror
    from spark_consumer.registry import SchemaCache

    def start(run: Run) -> Callable[[Any, int], None]:
        return Mirror(path, SchemaCache(run.options.registry), run.report, run.options.tables).apply

    given = source_options(bootstrap_servers, registry, prefix, tables, max_changes, starting_position, option)
    _run(
        start,
        "walgate mirror",
        given,
        checkpoint or f"{path}/checkpoint",
        until_lsn,
        once,
        progress,
        jars,
        memory_mb,
        cores,
        verbose,
        lambda spark: pictures.picture(spark, path),
    )


@app.command()
def consume(
    bootstrap_servers: Servers,
    registry: RegistryUrl,
    path: Path_,
    prefix: Prefix = "cdc",
    tables: Tables = "",
    format: Annotated[str, typer.Option(help="delta or parquet.")] = "parquet",  # noqa: A002 - the option's name
    checkpoint: Checkpoint = "",
    max_changes: Limit = MAX_CHANGES,
    starting_position: Start = "earliest",
    until_lsn: Until = "",
    once: Once = False,
    progress: ProgressKind = "lines",
    option: Option = [],  # noqa: B006
    jars: Jars = "",
    memory_mb: Memory = 1024,
    cores: Cores = 0,
    verbose: Verbose = False,
) -> None:
    """Append every committed change to a changelog of each table."""
    from spark_consumer.changelog import Changelog
    from spark_consumer.registry import SchemaCache

    if format not in ("delta", "parquet"):
        _fail(OptionError(f"--format is delta or parquet, not {format}"))

    def start(run: Run) -> Callable[[Any, int], None]:
        return Changelog(path, format, SchemaCache(run.options.registry), run.report).apply

    given = source_options(bootstrap_servers, registry, prefix, tables, max_changes, starting_position, option)
    _run(
        start,
        "walgate consume",
        given,
        checkpoint or f"{path}/checkpoint",
        until_lsn,
        once,
        progress,
        jars,
        memory_mb,
        cores,
        verbose,
    )


@app.command()
def dump(
    path: Annotated[str, typer.Option("--mirror", "--path", help="Folder of a mirror.")],
    table: Annotated[list[str], typer.Option("--table", help="Only these; all where empty.")] = [],  # noqa: B006
    to: Annotated[
        str, typer.Option(help="A folder for Parquet files; JSON lines on standard output where empty.")
    ] = "",
) -> None:
    """Write the rows of a local mirror, every value exact, without Spark."""
    from spark_consumer.dump import dump_json, dump_parquet

    try:
        if to:
            dump_parquet(Path(path), table, Path(to))
        else:
            dump_json(Path(path), table, sys.stdout)
    except ConsumerError as problem:
        _fail(problem)


def source_options(
    servers: str, registry: str, prefix: str, tables: str, max_changes: int, start: str, more: list[str]
) -> dict[str, str]:
    """Options of the data source from those of a command. Raises OptionError."""
    options = {
        "kafka.bootstrap.servers": servers,
        "registry.url": registry,
        "prefix": prefix,
        "maxChangesPerTrigger": str(max_changes),
        "startingPosition": start,
    }
    if tables:
        options["tables"] = tables
    for item in more:
        name, equals, value = item.partition("=")
        if not equals:
            _fail(OptionError(f"--option {item} is not name=value"))
        options[name] = value
    return options


def _run(
    start: Callable[[Run], Callable[[Any, int], None]],
    name: str,
    given: dict[str, str],
    checkpoint: str,
    until_lsn: str,
    once: bool,
    progress: str,
    jars: str,
    memory_mb: int,
    cores: int,
    verbose: bool,
    picture: Callable[[Any], Any] | None = None,
) -> None:
    """`picture`: the last one of a mirror, or None."""
    from pyspark.errors import PySparkException

    from spark_consumer.options import parse_options
    from spark_consumer.session import local_session

    try:
        if progress not in ("lines", "json"):
            raise OptionError(f"--progress is lines or json, not {progress}")
        until = parse_lsn(until_lsn) if until_lsn else None
        run = Run(parse_options(given, streaming=True), until, progress)
        run.stop_on_signals()
        run.wait_for_topic()
        if run.stopping.is_set():
            return
        paths = [Path(jar) for jar in jars.split(",") if jar]
        level = {} if verbose else {"spark.log.level": "FATAL"}
        spark = local_session(name, jars=paths, memory_mb=memory_mb, cores=cores or None, settings=level)
        if picture is not None and given["startingPosition"] == "earliest" and (last := picture(spark)) is not None:
            # Of a new checkpoint; an old one knows better.
            given = {**given, "startingPosition": f"lsn:{last.commit_lsn}"}
            run.options = parse_options(given, streaming=True)

        def query() -> Any:
            frame = spark.readStream.format("walgate").options(**given).load()
            writer = frame.writeStream.foreachBatch(start(run)).option("checkpointLocation", checkpoint).queryName(name)
            return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")).start()

        if once:
            run.watch(query())
        else:
            run.keep_up(query)
        spark.stop()
    except (ConsumerError, ValueError) as problem:
        _fail(problem)
    except PySparkException as problem:
        told = told_by(str(problem))
        if verbose or told is None:
            raise
        _fail(told)


def _fail(problem: Exception | str) -> NoReturn:
    print(f"walgate: {problem}", file=sys.stderr)
    raise SystemExit(1)
