"""Decisions that this process makes without a node: cached denials, leases, and reports of them."""
