"""The commands of `walgate`. `main` declares them; each other module implements one command or a
group of them.

In: arguments, settings, and answers of PostgreSQL, Kafka, the registry or the running gateway. Out:
text or JSON, and an exit code (exit_codes). Nothing else imports this package, and it must not know
how rows are encoded.
"""
