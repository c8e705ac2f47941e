"""Membership records and the table that holds them."""
