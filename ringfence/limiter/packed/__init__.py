"""Counters and other rows by key in blocks of memory, without an object per key."""
