"""Requests at a node: sessions, decisions, deduplication, leases, and bounds of each caller."""
