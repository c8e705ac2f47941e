"""Compiled form of `recent_charges`."""

from node.requests.refunds.recent_charges import Charges as Charges
from node.requests.refunds.recent_charges import add_batch as add_batch
from node.requests.refunds.recent_charges import add_units as add_units
