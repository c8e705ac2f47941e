"""Values that all parts of one node share: settings, clock, rules, counters, and error
containment.
"""
