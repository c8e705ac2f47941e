"""From a connection to a decision: sessions, deciding, deduplication, leases, limits per caller."""
