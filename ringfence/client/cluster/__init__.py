"""The client's view of a cluster: members, rules, links, and the routing of checks."""
