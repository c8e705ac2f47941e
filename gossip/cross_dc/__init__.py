"""Decisions about counts between data centers: what to send, and what to recover."""
