"""Replaying access logs: `logs` reads them, `oracle` judges the decisions that came back."""
