"""The jobs of the command line: `walgate mirror`, `merge`, `consume`, `dump` and `versions`.

    cli options settings_file    commands, their options, and options from a file
    session java_start           the Spark session, and messages of Java while it starts
    secret_settings              how secrets reach Spark's Java
    checkpoint_checks            where a query is, and whether its output has what lies before that
    run                          progress, restarts after an outage, and when a job ends
    status                       --http: probes, metrics and status

In: arguments, a settings file and signals. Out: a running query, lines or JSON, and an exit code.
No other package imports this one; it must not decide what a mirror or changelog writes.
"""
