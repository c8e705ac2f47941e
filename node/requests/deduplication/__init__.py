"""Checks that were decided before: answers by request, and outcomes by check identity."""
