"""Ownership of shards: the transition table, the states of all shards, and their data."""
