"""Excuses: when, where and why a decision need not be the decision of one exact counter."""

from simulations.judging.excuses.excuse import REASONS, Excuse, Place
from simulations.judging.excuses.excuses import Excuses
from simulations.judging.excuses.holders import Holders

__all__ = ["REASONS", "Excuse", "Excuses", "Holders", "Place"]
