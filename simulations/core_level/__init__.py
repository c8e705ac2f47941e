"""The core level: the node's cores on a heap of events, without trio."""
