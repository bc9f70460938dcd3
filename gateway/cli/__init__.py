"""The commands of `walgate`. `main` declares them; each module here is what one command, or a group
of them, does.

They ask PostgreSQL, Kafka, the registry or the running gateway, print the answer, and end with an
exit code (exit_codes).
"""
