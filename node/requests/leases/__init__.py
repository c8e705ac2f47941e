"""Leases: units of hot keys that the owner lends to clients, and their return."""
