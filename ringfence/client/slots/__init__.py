"""Waiting for a turn or a slot, and renewal of the slots that this process holds."""
