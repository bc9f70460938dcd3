"""Options of a table in a catalog: `CREATE TABLE ... USING walgate OPTIONS (...)`.

Spark passes the options to a Python source only when the table is created: each option twice (as
`option.table` and as `table`), alongside Spark's own properties. When the table is read, Spark
passes only the columns that it has stored. The options are therefore stored in the metadata of the
first column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from spark_consumer.errors import OptionError

_PREFIX = "option."
_NOTE = "walgate.options"
_SECRET = re.compile(
    r"secret|password|passphrase|token|user\.info|oauthbearer\.config|\.key(\.pem)?$|jaas", re.IGNORECASE
)
_URL_WITH_PASSWORD = re.compile("://[^/@]+:[^/@]*@")


def options_of_table(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options as they were written."""
    written = {name.removeprefix(_PREFIX): text for name, text in given.items() if name.startswith(_PREFIX)}
    return written or dict(given)


def with_options(columns: StructType, given: Mapping[str, str]) -> StructType:
    """Return the columns; if the options are those of a table, they are stored in the columns.
    Raises OptionError."""
    if not any(name.startswith(_PREFIX) for name in given):
        return columns
    options = options_of_table(given)
    secret = next((n for n in sorted(options) if _SECRET.search(n) or _URL_WITH_PASSWORD.search(options[n])), None)
    if secret is not None:
        raise OptionError(
            f"{secret} would be readable to everyone who can see the columns of the table",
            hint="Use CREATE TEMPORARY VIEW, which stores no options: creating a table reads its columns from the registry."
            if secret.startswith("registry.")
            else f"Omit it here, and give it where the table is read: SELECT ... FROM the_table WITH ('{secret}' = '...').",
        )
    first, *others = columns.fields
    noted = StructField(first.name, first.dataType, first.nullable, {_NOTE: options})
    return StructType([noted, *others])


def noted_options(columns: StructType) -> dict[str, str]:
    """Return the options that are stored in the columns of a table. A frame made by `load()` has
    none."""
    return dict(columns.fields[0].metadata.get(_NOTE, {})) if columns.fields else {}
