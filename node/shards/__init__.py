"""Shards that this node counts: ownership, transfers, replicas, and recovery after a stall."""
