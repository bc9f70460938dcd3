"""One slot's life: start (start.py), read (pump.py), announce relations (announcer.py), and begin again (supervisor.py)."""

from gateway.service.supervisor import serve

__all__ = ["serve"]
