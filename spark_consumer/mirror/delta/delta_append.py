"""Append to a Delta table in Delta's own transaction, equivalent to a DataFrameWriter with txnAppId
and txnVersion.

For these two options, the writer reads the log of the table, which is a job for every version. The
checksum that Delta stores beside a version contains the same information.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from spark_consumer.jvm import activated, java_class, java_frame
from spark_consumer.mirror.delta.delta_table import noted_versions, undone_version, versions_in_log
from spark_consumer.mirror.delta.java_delta import java_log
from spark_consumer.mirror.sql_names import quoted
from spark_consumer.mirror.table_format import NO_NUMBERS, Superseded

_DELTA = "org.apache.spark.sql.delta"


def append(
    frame: DataFrame,
    location: str,
    application: str,
    number: int,
    expected: Mapping[str, int] = NO_NUMBERS,
    note: str | None = None,
    left: int | None = None,
) -> bool:
    """Append in one commit, once for this version (`number`) of the application. Return False if
    nothing was written and Delta's writer is needed: the table does not exist, has other columns,
    or has no checksum that lists its applications.

    `expected`: application -> the version that it must have noted last. `note`: userMetadata of the
    commit. `left`: version of the table that this writer has left.

    Raises Superseded if one of `expected` has noted another version, or an earlier version than
    `left` was restored. If one of them notes a version during this commit, Delta raises
    ConcurrentTransactionException.
    """
    with activated(frame.sparkSession):
        return _append(frame, location, application, number, expected, note, left)


def _append(
    frame: DataFrame,
    location: str,
    application: str,
    number: int,
    expected: Mapping[str, int],
    note: str | None,
    left: int | None,
) -> bool:
    spark = frame.sparkSession
    option = java_class(spark, "scala.Option")
    transaction = java_log(spark, location).startTransaction(option.empty(), option.empty())
    snapshot = transaction.snapshot()
    noted = noted_versions(snapshot)
    rows = java_frame(frame)
    if noted is None and expected:  # Delta's writer would not check `expected`
        noted = versions_in_log(snapshot, (application, *expected))
    if noted is None:
        return False
    if any(noted.get(name) != version for name, version in expected.items()):
        raise Superseded(location)
    if left not in (None, snapshot.version()) and undone_version(spark, location, -1, application) is not None:
        raise Superseded(location)
    if snapshot.schema().catalogString() != rows.schema().catalogString():
        names = list(snapshot.schema().fieldNames())
        if sorted(names) != sorted(frame.columns):
            return False
        rows = java_frame(frame.select(*map(quoted, names)))
        if snapshot.schema().catalogString() != rows.schema().catalogString():
            return False
    if noted.get(application, -1) >= number:
        return True
    for name in (application, *expected):  # so that a concurrent commit of one of these conflicts
        transaction.readTxn().addOne(name)
    actions = transaction.writeFiles(rows)
    now = java_class(spark, "java.lang.System").currentTimeMillis()
    mark = java_class(spark, f"{_DELTA}.actions.SetTransaction")(application, number, option.apply(now))
    operation = java_class(spark, f"{_DELTA}.DeltaOperations$Write")
    appending = java_class(spark, "org.apache.spark.sql.SaveMode").Append
    told = [option.empty(), option.empty(), option.apply(note), *(option.empty() for _ in range(5))]
    transaction.commit(actions.appended(mark), operation(appending, *told))
    return True
