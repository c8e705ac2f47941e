"""Transfers of shards between nodes: search, sending, receipt and acknowledgement."""
