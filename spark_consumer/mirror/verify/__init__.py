"""Comparison of a mirror with its source: the differences that a VERIFY snapshot finds, and where
its results are stored."""
