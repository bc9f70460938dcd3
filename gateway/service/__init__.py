"""One slot's life: start (start.py, checks.py), read (pump.py), announce relations (announcer.py), begin again
(supervisor.py). attempt.py puts one life together."""
