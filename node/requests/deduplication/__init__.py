"""Deduplication of checks: answers by request, and outcomes by the identity of the check."""
