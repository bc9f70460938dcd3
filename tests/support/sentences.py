"""The sentences of a page in Markdown, of which readers have a limited patience."""

from __future__ import annotations

import re

WORDS = 30
"""A sentence has at most as many words; code within a sentence counts as one."""

CODE_BLOCK = re.compile(r"^ *```.*?^ *```$|(?<=\n\n)(?: {4}[^\n]*\n)+", re.S | re.M)
LIST_ITEM = re.compile(r"^ *(?:[*-]|\d+\.) +", re.M)
ENDS = re.compile(r"\n\s*\n|^ *[#|]+|\||(?<=[.?!])\*{0,2}\)?\s", re.M)
WORD = re.compile(r"\w[\w.'-]*")


def prose(text: str) -> str:
    """Return the page without code blocks, comments, images and link addresses. Code within a line
    is the word `code`."""
    text = re.sub(r"<!--.*?-->", "", CODE_BLOCK.sub("\n\n", text), flags=re.S)
    text = re.sub(r"``.+?``|`[^`]*`", "`code`", text)
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"^!\[.*$", "", text, flags=re.M))


def sentences(text: str) -> list[str]:
    """Return each sentence, item and cell of the prose, on one line."""
    separate = LIST_ITEM.sub("\n\n", prose(text))
    return [" ".join(piece.split()) for piece in ENDS.split(separate) if piece.strip()]


def too_long(text: str) -> list[str]:
    """Return the sentences with more than WORDS words."""
    return [sentence for sentence in sentences(text) if len(WORD.findall(sentence)) > WORDS]
