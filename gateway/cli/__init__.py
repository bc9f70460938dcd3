"""Commands of `walgate` that are more than a call: what they have in common (ending), what is said to the running gateway
(snapshots), and what an operator decides about a slot's position (positions). gateway/cli/main.py puts them together."""
