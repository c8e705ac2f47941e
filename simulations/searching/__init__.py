"""Searches around seeds: shrinking of failing runs, and case files that replay them."""
