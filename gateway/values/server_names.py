"""regclass and its kind: an oid in binary, a name in text.

The names of what the server made itself are read with the type (gateway/relations/type_catalog.py). An object of a user may have had
another name when the row was written, which only the server can tell: its rows are asked for in text.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gateway.values.column_readers import Render
from gateway.values.special_values import NotRenderable

_OID = struct.Struct("!I").unpack


def names_renderer(outputs: Sequence[str]) -> Render:
    """`outputs`: oid, a space and the name."""
    names = {int(oid): name.encode() for oid, _, name in (output.partition(" ") for output in outputs)}

    def render(value: bytes) -> bytes:
        name = names.get(_OID(value)[0])
        if name is None:
            raise NotRenderable("the name of an object that a user made")
        return name

    return render
