"""Watches of a run: members, settling, and owners of shards, as they change."""
