"""Operator of a simulated cluster: what the nodes publish, and whether it is true."""
