"""Comparison of a mirror with its source: the differences that a VERIFY snapshot finds, and where
its results are stored.

In: tables of a mirror, and the rows of a VERIFY snapshot. Out: differences and verdicts. This
package must not change a table.
"""
