"""The dashboard page: one HTML file with a content security policy that lets browsers load only
that file.
"""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

from node.admin.http_messages import AdminResponse

__all__ = ["response"]

_INLINE = re.compile(rb"<(style|script)>(.*?)</\1>", re.S)


@cache
def response() -> AdminResponse:
    """Return the dashboard page with a content security policy made from its own scripts and
    styles."""
    body = (files(__package__) / "dashboard.html").read_bytes()
    policy = ["default-src 'none'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'"]
    policy.append("frame-ancestors 'none'")
    for kind, text in _INLINE.findall(body):
        digest = b64encode(sha256(text).digest()).decode("ascii")
        policy.append(f"{kind.decode('ascii')}-src 'sha256-{digest}'")
    return AdminResponse(
        body,
        "text/html; charset=utf-8",
        headers=[
            (b"content-security-policy", "; ".join(policy).encode("ascii")),
            (b"referrer-policy", b"no-referrer"),
        ],
    )
