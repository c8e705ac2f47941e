"""The client side of a cluster: members, rules, links and the routing of checks."""
