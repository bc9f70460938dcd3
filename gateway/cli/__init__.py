"""The commands of `walgate`. `main` declares them; each other module implements one command or a
group of them.

They query PostgreSQL, Kafka, the registry or the running gateway, print the answer, and end with an
exit code (exit_codes).
"""
