"""Code that clients and nodes share: links to members, routing, choice of the engine, and slot
queues.
"""
