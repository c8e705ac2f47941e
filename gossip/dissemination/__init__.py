"""Dissemination of membership records: piggybacked updates and full exchanges."""
