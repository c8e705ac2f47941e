"""Counts between data centers: dissemination, split limits, and recovery of lost counts."""
