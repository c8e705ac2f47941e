"""Replay of access logs: `logs` parses them, `oracle` checks the decisions."""
