"""Render inet, cidr, macaddr and macaddr8 from their binary form (`network.c`, `inet_net_ntop.c`,
`mac.c`).

The types inet and cidr are sent as family, prefix length, is-cidr flag, address length and address.
"""

from __future__ import annotations

from typing import Final

from gateway.values.special_values import NotRenderable

_IPV4: Final = 2  # PGSQL_AF_INET
_IPV6: Final = 3


def render_inet(value: bytes) -> bytes:
    """Render an inet or cidr. The prefix length is written if it is shorter than the address, and
    always for cidr."""
    family, prefix_bits, is_cidr, length = value[:4]
    address = value[4:]
    if len(address) != length or (family, length) not in ((_IPV4, 4), (_IPV6, 16)):
        raise NotRenderable("address family")
    text = ".".join(map(str, address)) if family == _IPV4 else _ipv6(address)
    return (f"{text}/{prefix_bits}" if is_cidr or prefix_bits != length * 8 else text).encode()


def _ipv6(address: bytes) -> str:
    """Render an address as inet_net_ntop_ipv6 does: the longest run of two or more zero words is
    `::`; an IPv4 address within it keeps its dots."""
    words = [int.from_bytes(address[at : at + 2]) for at in range(0, 16, 2)]
    start, length = _longest_zeros(words)
    dotted = start == 0 and (length == 6 or (length == 7 and words[7] != 1) or (length == 5 and words[5] == 0xFFFF))
    text = ""
    for at, word in enumerate(words):
        if start <= at < start + length:
            text += ":" if at == start else ""
            continue
        text += ":" if at else ""
        if at == 6 and dotted:
            return text + ".".join(map(str, address[12:]))
        text += f"{word:x}"
    return text + ":" if length and start + length == 8 else text


def _longest_zeros(words: list[int]) -> tuple[int, int]:
    """Return (start, length) of the first longest run of zero words, or length 0 if no run has two
    words."""
    best, start = (-1, 0), 0
    for at, word in enumerate([*words, 1]):
        if word:
            if at - start > best[1]:
                best = (start, at - start)
            start = at + 1
    return best if best[1] >= 2 else (-1, 0)


def render_macaddr(value: bytes) -> bytes:
    """Render a macaddr of six bytes or a macaddr8 of eight."""
    return value.hex(":").encode()
