"""Requests of a caller: descriptors, the counters that match them, and the rows of a request."""
