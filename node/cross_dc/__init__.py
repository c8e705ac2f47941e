"""Counts between data centers: dissemination, division of limits, and recovery of lost counts."""
