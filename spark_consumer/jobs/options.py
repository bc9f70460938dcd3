"""Options that several jobs share: their declarations for Typer, and their meaning for Spark and
the data source."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from spark_consumer.errors import OptionError
from spark_consumer.jobs.settings_file import Settings, load_settings
from spark_consumer.mirror.merge.merge_thread import MERGE_AT_LEAST_EVERY_S, MERGE_EVERY_S

SOURCE, OUTPUT, BATCHES = "What is read", "What is written", "Micro-batches"
SPARK, OBSERVE = "Spark", "Watching it"
"""The panels of options in the help."""

Servers = Annotated[str, typer.Option("--bootstrap-servers", help="Kafka brokers.", rich_help_panel=SOURCE)]
RegistryUrl = Annotated[
    str, typer.Option("--registry", help="URL of the schema registry (Confluent API).", rich_help_panel=SOURCE)
]
Prefix = Annotated[str, typer.Option(help="Prefix of the topics.", rich_help_panel=SOURCE)]
Tables = Annotated[
    str, typer.Option(help="Only these tables (public.orders,public.items). Default: all.", rich_help_panel=SOURCE)
]
Exclude = Annotated[
    str,
    typer.Option(
        help="Exclude these tables (public.tmp_*,staging.*). Wildcards: *, ? and [...].", rich_help_panel=SOURCE
    ),
]
Path_ = Annotated[
    str,
    typer.Option(
        "--path",
        "--to",
        help="Output directory: a local path, or any URL that Spark can write to.",
        rich_help_panel=OUTPUT,
    ),
]
Checkpoint = Annotated[
    str, typer.Option(help="Checkpoint location of the query. Default: <path>/checkpoint.", rich_help_panel=OUTPUT)
]
Limit = Annotated[
    int,
    typer.Option(
        help="Maximum number of changes per micro-batch. A larger transaction is a micro-batch of its own.",
        rich_help_panel=BATCHES,
    ),
]
Start = Annotated[
    str,
    typer.Option(
        help="Where a query without a checkpoint starts: earliest, latest, marker:, lsn:, time:.",
        rich_help_panel=SOURCE,
    ),
]
Until = Annotated[
    str,
    typer.Option(help="Stop when everything up to this LSN has been written (16/B374D848).", rich_help_panel=BATCHES),
]
Once = Annotated[
    bool,
    typer.Option("--once", help="Process the records that are in the topics now, then stop.", rich_help_panel=BATCHES),
]
ProgressKind = Annotated[str, typer.Option(help="lines or json.", rich_help_panel=OBSERVE)]
Option = Annotated[
    list[str],
    typer.Option(
        "--option", help="An option of the data source, as name=value: kafka.*, registry.*, ...", rich_help_panel=SOURCE
    ),
]
Jars = Annotated[
    str, typer.Option(envvar="WALGATE_SPARK_JARS", help="Delta's jars, separated by commas.", rich_help_panel=SPARK)
]
Master = Annotated[
    str,
    typer.Option(
        help="Spark master: spark://host:7077, yarn, k8s://... Default: this computer, or spark-submit's.",
        rich_help_panel=SPARK,
    ),
]
Conf = Annotated[
    list[str],
    typer.Option(
        "--conf", help="A Spark configuration property, as name=value. May be repeated.", rich_help_panel=SPARK
    ),
]
Memory = Annotated[
    int,
    typer.Option(
        help="Heap size of Spark's driver, in MB (spark.driver.memory). With --master, executors use spark.executor.memory. "
        "Does not apply with spark-submit.",
        rich_help_panel=SPARK,
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        help="Show Spark's error log, and the complete error that ends the command.",
        rich_help_panel=OBSERVE,
    ),
]
Cores = Annotated[
    int, typer.Option(help="Cores of this computer that Spark uses without --master. 0: all.", rich_help_panel=SPARK)
]

_SETTINGS = "what the settings file says"


def _load(context: typer.Context, path: Path | None) -> Path | None:
    """Use the settings of the --config file as defaults of the other options."""
    if path is not None:
        try:
            settings = load_settings(path, (item.name or "" for item in context.command.params))
        except OptionError as problem:
            fail(problem)
        context.default_map = {**(context.default_map or {}), **settings.command}
        context.meta[_SETTINGS] = settings
    return path


def settings_of(context: typer.Context) -> Settings:
    found: Settings = context.meta.get(_SETTINGS, Settings())
    return found


Http = Annotated[
    str,
    typer.Option(
        "--http",
        help="HOST:PORT on which to serve /livez, /readyz and /metrics. Default: none.",
        rich_help_panel=OBSERVE,
    ),
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
        "than a fifth of the time. 0: merge after every micro-batch, before the next one. inf: leave merging to walgate merge.",
        rich_help_panel=OUTPUT,
    ),
]
Retention = Annotated[
    float,
    typer.Option(
        help="Seconds for which a version of the mirror can be read after it was replaced. Older versions are removed.",
        rich_help_panel=OUTPUT,
    ),
]
NoVectors = Annotated[
    bool,
    typer.Option(
        "--no-deletion-vectors",
        help="Create new tables without Delta's deletion vectors, which some readers do not support.",
        rich_help_panel=OUTPUT,
    ),
]
CatalogName = Annotated[
    str,
    typer.Option(
        "--catalog",
        help="Register each table as schema.table in this Spark catalog, with its directory as the location. Default: none.",
        rich_help_panel=OUTPUT,
    ),
]


@dataclass(frozen=True, slots=True)
class SparkChoice:
    """The options of a command for its Spark session."""

    master: str
    conf: list[str]
    jars: str
    memory_mb: int
    cores: int
    verbose: bool
    of_file: Settings

    def session(self, name: str, *, lasting: bool = False) -> Any:
        """Return a Spark session; `lasting`: for a job of hours. Raises OptionError and
        JavaUnusable."""
        from spark_consumer.jobs.java_start import quiet_start
        from spark_consumer.jobs.session import is_submitted, job_session, local_session, set_up

        if self.jars:
            os.environ["WALGATE_SPARK_JARS"] = self.jars
        if not is_submitted():
            set_up()
        jars = [jar for jar in os.environ.get("WALGATE_SPARK_JARS", "").split(",") if jar]
        conf = {**self.of_file.conf, **dict(pair("--conf", item) for item in self.conf)}
        if not self.verbose:
            conf.setdefault("spark.log.level", "FATAL")
        secrets = self.of_file.secrets
        with nullcontext() if self.verbose or is_submitted() else quiet_start():
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
    """Return the options of the data source, made from the options of a command and its settings
    file. Raises OptionError."""
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
        name, value = pair("--option", item)
        options[name] = value
    if exclude:
        options["exclude"] = exclude
    return options


def pair(option: str, item: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not equals:
        fail(OptionError(f"{option} {item} is not name=value"))
    return name, value


def check_progress(progress: str) -> None:
    """Raise OptionError unless the value of --progress is valid."""
    if progress not in ("lines", "json"):
        raise OptionError(f"--progress must be lines or json, not {progress}")


def fail(problem: Exception | str, code: int = 1) -> NoReturn:
    print(f"walgate: {problem}", file=sys.stderr)
    raise SystemExit(code)
