"""Settings: a TOML file and the environment -> checked values, or errors that name the setting.

`settings` combines the sections.

In: a file, variables, and the files they name. Out: frozen settings, and options for clients. This
package must not know what a setting means for PostgreSQL or Kafka: the packages that use it decide.
"""
