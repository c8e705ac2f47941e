"""What runs on a host: the service, forwarding, settings, the command line.

Applications embed `ringfence` and never import this package.
"""
