"""Appends to a Delta table by Delta's own transaction, as its writer makes them with txnAppId and txnVersion.

For these two, the writer reads the log of the table, which is a job for every version. The checksum that Delta keeps beside a
version says the same.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from spark_consumer.jvm import activate, java, java_frame, java_session


def append(frame: DataFrame, location: str, application: str, number: int) -> bool:
    """One commit, once for this version (`number`) of the application. False: nothing was written, for Delta's writer is needed:
    there is no table, it has other columns, or no checksum that knows its applications.

    Raises what Delta raises.
    """
    spark = frame.sparkSession
    packages, option = java(spark).org.apache.spark.sql, java(spark).scala.Option
    activate(spark)
    log = packages.delta.DeltaLog.forTable(java_session(spark), location)
    transaction = log.startTransaction(option.empty(), option.empty())
    snapshot = transaction.snapshot()
    noted = noted_versions(snapshot)
    rows = java_frame(frame)
    if noted is None or snapshot.schema().catalogString() != rows.schema().catalogString():
        return False
    if noted.get(application, -1) >= number:
        return True
    transaction.readTxn().addOne(application)  # another commit of this application meanwhile is a conflict
    actions = transaction.writeFiles(rows)
    now = java(spark).java.lang.System.currentTimeMillis()
    mark = packages.delta.actions.SetTransaction(application, number, option.apply(now))
    operation = getattr(packages.delta, "DeltaOperations$Write")
    transaction.commit(actions.appended(mark), operation(packages.SaveMode.Append, *(option.empty() for _ in range(8))))
    return True


def noted_versions(snapshot: Any) -> dict[str, int] | None:
    """Of each application, the version that it last noted in a table, by the checksum; None: it does not say."""
    checksum = snapshot.checksumOpt()
    listed = checksum.get().setTransactions() if checksum.isDefined() else None
    if listed is None or not listed.isDefined():
        return None
    found = listed.get()
    return {noted.appId(): int(noted.version()) for noted in map(found.apply, range(found.size()))}
