"""Slots of concurrency limits: waits for slots, delays of queue mode, and renewal of held slots."""
