"""Membership of the cluster as this node sees it: gossip, links to members, and the cluster's
clock.
"""
