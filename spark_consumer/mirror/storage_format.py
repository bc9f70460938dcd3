"""The form in which a mirror is stored: a number in its manifest, a Delta transaction version of the application FORM.

    1   every commit that was taken in is in the tables; no number is stored
    2   it may be in `changes` alone, which is merged later

A release that does not know the form neither reads nor writes the mirror: it would miss what it cannot see.
"""

from __future__ import annotations

from spark_consumer.errors import MirrorError

FORM = "walgate-form"
APPENDED_FORM = 2
NEWEST_FORM = APPENDED_FORM


def refuse_newer(path: str, form: int | None) -> None:
    """Raises MirrorError where this release does not know the form. None: no number is stored."""
    if form is not None and form > NEWEST_FORM:
        raise MirrorError(
            f"the mirror at {path} was written by a newer release of Walgate, in format version {form}; this release supports "
            f"versions up to {NEWEST_FORM}, and would miss changes that the mirror contains",
            hint="Use the newer release. To return to this one, create a mirror at another path.",
        )
