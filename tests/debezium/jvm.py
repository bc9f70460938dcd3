"""Java classes for the tests: a JVM of their own, spoken to through py4j, which PySpark brings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from gateway.local.java import java

HEAP = "768m"
STOP_TIMEOUT_S = 30.0


@contextmanager
def jvm(class_path: Sequence[Path], folder: Path, options: Sequence[str] = ()) -> Iterator[JavaGateway]:
    """`folder`: for its log and what it unpacks; `options` of Java. It ends with this process,
    too."""
    with (folder / "java.log").open("wb") as log:
        port, token, process = launch_gateway(
            classpath=":".join(map(str, class_path)),
            java_path=str(java()),
            javaopts=[
                *(f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-XX:-UsePerfData", f"-Djava.io.tmpdir={folder}"),
                *options,
            ],
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
            redirect_stdout=log,
            redirect_stderr=log,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
        try:
            yield gateway
        finally:
            gateway.shutdown()
            process.terminate()
            process.wait(STOP_TIMEOUT_S)
            process.stdin.close()
