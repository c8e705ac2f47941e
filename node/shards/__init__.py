"""Shards that this node holds: ownership, transfers, replicas, and recovery after a stall."""
