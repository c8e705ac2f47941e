"""Ringfence in the frameworks and libraries that applications already have.

One module per framework, each importing nothing but its framework and the client, each with an
extra of its own. What the web frameworks ask of a limiter and what they answer is one `policy` for
all, so settings mean the same everywhere.
"""
