"""Gossip messages, their encoding and their encryption."""
