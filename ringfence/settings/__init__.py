"""Readers of settings and token files, and checks of values, which nodes and gateways share."""
