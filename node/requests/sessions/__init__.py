"""Connections to a node: sessions, turns of their requests, and the bounds of each caller."""
