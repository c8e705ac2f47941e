"""Node of the rate limiter: the process on each host, which decides and forwards checks, and its
command line.

Applications embed `ringfence` and never import this package.
"""
