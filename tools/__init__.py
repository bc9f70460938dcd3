"""Programs for developers: the compiler of the hot modules, the bill of materials, generators of
pages in docs.

The wheel does not contain them.
"""
