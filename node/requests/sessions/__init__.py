"""Connections to a node: sessions, the order of their requests, and the limits of each caller."""
