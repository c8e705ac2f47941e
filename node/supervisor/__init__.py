"""Several members on one host: one supervisor, one process per member, one admin port.

`supervisor.supervise` runs in the supervisor's process, and `member_process.serve_member` in each
process that it starts.
"""
