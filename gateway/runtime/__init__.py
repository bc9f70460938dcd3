"""One slot's life: start (start.py, catalog.py), read (pump.py), announce relations (announcer.py), begin again
(supervisor.py). session.py puts one life together."""
