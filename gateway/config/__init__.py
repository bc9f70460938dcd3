"""Settings: a TOML file and the environment -> checked values, or errors that name the setting.

`settings` combines the sections. The packages that use a setting decide what it means for
PostgreSQL or Kafka.
"""
