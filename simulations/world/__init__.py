"""Simulated hosts, clients and network, on which scenarios are run."""
