"""Computation of what rules would do to the clients of an access log, in several data centers."""
