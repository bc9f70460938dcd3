"""Tables of a mirror, one at a time: how each is prepared for a batch, written, and named in a
catalog."""
