"""Settings: from a TOML file and the environment to checked values, and errors that name the
setting.

`settings` puts the sections together. What a setting means for PostgreSQL or Kafka is decided by
the packages that use it.
"""
