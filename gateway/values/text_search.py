"""Render tsvector and tsquery from their binary form.

A tsvector (`tsvector.c`) is a count, then for each lexeme a C string, a count of positions, and the
positions. A tsquery (`tsquery.c`) is a count, then the nodes in prefix order, with an operator's
right operand before its left one.
"""

from __future__ import annotations

import struct
from typing import Final

_COUNT = struct.Struct("!i").unpack_from
_POSITION_COUNT = struct.Struct("!H").unpack_from
_WEIGHTS: Final = (b"", b"C", b"B", b"A")
_DISTANCE = struct.Struct("!H").unpack_from
_OPERAND, _OPERATOR = 1, 2
_NOT, _AND, _OR, _PHRASE = 1, 2, 3, 4
_PRIORITY: Final = {_NOT: 4, _AND: 2, _OR: 1, _PHRASE: 3}
_WEIGHTS_OF_OPERAND: Final = ((8, b"A"), (4, b"B"), (2, b"C"), (1, b"D"))


def render_tsvector(value: bytes) -> bytes:
    """Render a tsvector, for example `'lexeme':1A,2`; quotes and backslashes are doubled."""
    place = 4
    lexemes = []
    for _ in range(_COUNT(value)[0]):
        end = value.index(0, place)
        text = b"'%b'" % value[place:end].replace(b"\\", b"\\\\").replace(b"'", b"''")
        count: int = _POSITION_COUNT(value, end + 1)[0]
        place = end + 3 + 2 * count
        positions = struct.unpack_from(f"!{count}H", value, end + 3)
        if count:
            text += b":" + b",".join(b"%d%b" % (each & 0x3FFF, _WEIGHTS[each >> 14]) for each in positions)
        lexemes.append(text)
    if place != len(value):
        raise ValueError("bytes after the last lexeme")
    return b" ".join(lexemes)


def render_tsquery(value: bytes) -> bytes:
    """Render a tsquery as `infix` of `tsquery.c` does, for example `'a' & ( 'b':*A | !'c' )`. Nodes
    are assembled from the last to the first, without recursion, so the depth is not limited."""
    nodes, place = [], 4
    for _ in range(_COUNT(value)[0]):
        node, place = _node(value, place)
        nodes.append(node)
    if place != len(value):
        raise ValueError("bytes after the last node")
    operands: list[tuple[int, bytes]] = []
    for operator, text in reversed(nodes):
        if operator == 0:
            operands.append((0, text))
        elif operator == _NOT:
            operands.append((_NOT, b"!" + _within(operands.pop(), _NOT, is_right_of_phrase=False)))
        else:
            right = _within(operands.pop(), operator, is_right_of_phrase=operator == _PHRASE)
            left = _within(operands.pop(), operator, is_right_of_phrase=False)
            operands.append((operator, b"%b %b %b" % (left, text, right)))
    if len(operands) > 1:
        raise ValueError("operands without an operator")
    return operands[0][1] if operands else b""


def _node(value: bytes, place: int) -> tuple[tuple[int, bytes], int]:
    """Return a node and the place of the next one. A node consists of its operator (0 for an
    operand) and its text."""
    if value[place] == _OPERAND:
        weight, is_prefix = value[place + 1], value[place + 2]
        end = value.index(0, place + 3)
        text = b"'%b'" % value[place + 3 : end].replace(b"\\", b"\\\\").replace(b"'", b"''")
        if weight or is_prefix:
            text += b":" + (b"*" if is_prefix else b"")
            text += b"".join(letter for bit, letter in _WEIGHTS_OF_OPERAND if weight & bit)
        return (0, text), end + 1
    if value[place] != _OPERATOR:
        raise ValueError("node of a tsquery")
    operator = value[place + 1]
    if operator == _PHRASE:
        distance: int = _DISTANCE(value, place + 2)[0]
        return (operator, b"<->" if distance == 1 else b"<%d>" % distance), place + 4
    return (operator, {_NOT: b"!", _AND: b"&", _OR: b"|"}[operator]), place + 2


def _within(operand: tuple[int, bytes], parent: int, *, is_right_of_phrase: bool) -> bytes:
    """Return the operand, in parentheses if it binds less tightly than the operator above it. A
    phrase on the right of a phrase operator is also in parentheses, because the order matters."""
    operator, text = operand
    if operator and (_PRIORITY[operator] < _PRIORITY[parent] or (operator == _PHRASE and is_right_of_phrase)):
        return b"( %b )" % text
    return text
