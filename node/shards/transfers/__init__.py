"""Transfers of shards: search, sending, receipt, and those that wait for acknowledgement."""
