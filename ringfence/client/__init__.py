"""Client that applications use: a limiter over a cluster or in one process, for async or blocking
code. `ringfence` has its public names.
"""
