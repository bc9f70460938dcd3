"""Changes of a key -> its last state: what a row is after all its changes, in the driver (Arrow)
and on the workers (Spark)."""
