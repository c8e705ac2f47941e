"""Requests of a caller: descriptors, the counters that they match, and the batches sent to
nodes."""
