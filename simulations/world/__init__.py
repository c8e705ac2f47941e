"""Simulated hosts, clients and network, and the run of a scenario on them."""
