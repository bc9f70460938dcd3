"""The tables of a mirror as Delta Lake keeps them: its log, its files, how they are written, merged
and cleaned up."""
