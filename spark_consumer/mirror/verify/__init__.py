"""A mirror compared with its source: what a VERIFY snapshot finds, and where its results lie."""
