"""Decisions that need no node: cached denials, leases, and their reports."""
