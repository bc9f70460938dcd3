"""The demo: a shop that changes while it is watched, the whole walk of its data, and a verdict on
the copy."""
