"""Decisions about counts between data centers: which to send, and which to recover after a loss."""
