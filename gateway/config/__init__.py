"""Settings: a TOML file and the environment -> checked values, or errors that name the setting.

    settings                        all sections together, and the rules between them; has the
                                    sections registry, schemas, snapshot, errors and http
    source  kafka  columns  debezium
                                    the sections of these names
    section                         what all sections share
    error_messages                  what is said about a wrong setting
    oauth_tokens  msk_iam           tokens for Kafka and the registry

In: a file, variables, and the files they name. Out: frozen settings, and options for clients. This
package must not know what a setting means for PostgreSQL or Kafka: the packages that use it decide.
"""
