"""Requests at a node: sessions, decisions, deduplication, leases, and limits for each caller."""
