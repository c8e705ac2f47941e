"""Several members on one host: one supervisor, a process for each member, one operator's port.

`supervise` runs in the process that was asked for, `serve_member` in each that it starts.
"""

from node.supervisor.member_plan import member_settings
from node.supervisor.member_process import serve_member
from node.supervisor.supervisor import supervise

__all__ = ["member_settings", "serve_member", "supervise"]
