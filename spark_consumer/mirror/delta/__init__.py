"""A mirror's tables in Delta Lake: their logs and files, and how they are written, merged and
cleaned up."""
