"""Bounds of refunds: what each token was charged recently."""
