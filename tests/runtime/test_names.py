"""The gateway's own names do not change: another name would leave behind what an earlier version
made."""

from __future__ import annotations

from gateway.names import transactional_id


def test_the_transactional_id_keeps_its_form() -> None:
    """A gateway with another id would not fence the producer of the version before it, and ACLs
    name the prefix (docs/checklist.md)."""
    assert transactional_id("7412", 16384, "orders") == "walgate.7412.16384.orders"
