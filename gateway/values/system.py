"""Render pg_lsn, tid, snapshots of transaction ids, int2vector, oidvector and reg* types from their
binary form."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gateway.values.column_readers import Render
from gateway.values.special_values import NotRenderable

_LSN = struct.Struct("!II")
_TID = struct.Struct("!IH")
_SNAPSHOT = struct.Struct("!iqq").unpack_from
_VECTOR_HEADER = struct.Struct("!iiIii").unpack_from
_XID8 = struct.Struct("!q").iter_unpack


def render_pg_lsn(value: bytes) -> bytes:
    return b"%X/%X" % _LSN.unpack(value)


def render_tid(value: bytes) -> bytes:
    """Render a tid as `(block,offset)`."""
    return b"(%d,%d)" % _TID.unpack(value)


def render_snapshot(value: bytes) -> bytes:
    """Render a pg_snapshot or txid_snapshot as `xmin:xmax:running`."""
    count, xmin, xmax = _SNAPSHOT(value)
    running = [xid for (xid,) in _XID8(value[20:])]
    if len(running) != count:
        raise ValueError("number of transaction ids")
    return b"%d:%d:%b" % (xmin, xmax, b",".join(b"%d" % xid for xid in running))


def render_int2vector(value: bytes) -> bytes:
    return _render_vector(value, "!ih")


def render_oidvector(value: bytes) -> bytes:
    return _render_vector(value, "!iI")


def _render_vector(value: bytes, layout: str) -> bytes:
    """Render numbers separated by spaces; they are sent as an array with lower bound 0."""
    if _VECTOR_HEADER(value.ljust(20, b"\0"))[0] == 0:
        return b""
    return b" ".join(b"%d" % number for _, number in struct.iter_unpack(layout, value[20:]))


_OID = struct.Struct("!I").unpack


def names_renderer(outputs: Sequence[str]) -> Render:
    """Return the renderer of a reg* type. `outputs` has the oid of each object, a space and its
    name."""
    names = {int(oid): name.encode() for oid, _, name in (output.partition(" ") for output in outputs)}

    def render(value: bytes) -> bytes:
        name = names.get(_OID(value)[0])
        if name is None:
            raise NotRenderable("the name of an object that a user made")
        return name

    return render
