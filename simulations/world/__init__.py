"""Simulated hosts, clients and network, and the run of one scenario on them."""
