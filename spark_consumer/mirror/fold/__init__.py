"""Fold of the changes of each key into the last state of its row, in the driver (Arrow) and on the
workers (Spark)."""
