"""Several members on one host: one supervisor, a process for each member, one operator's port.

`supervisor.supervise` runs in the process that was asked for, `member_process.serve_member` in each
that it starts.
"""
