"""Waits for slots and for delays of queue mode, and renewal of the slots of this process."""
