"""The live page: one file, which loads nothing from elsewhere and may run nothing but itself."""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

from node.admin.responses import Reply

__all__ = ["reply"]

_INLINE = re.compile(rb"<(style|script)>(.*?)</\1>", re.S)


@cache
def reply() -> Reply:
    """The page, with a policy that lets a browser run and load what stands in it, and no more."""
    body = (files(__package__) / "dashboard.html").read_bytes()
    policy = ["default-src 'none'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'"]
    policy.append("frame-ancestors 'none'")
    for kind, text in _INLINE.findall(body):
        digest = b64encode(sha256(text).digest()).decode("ascii")
        policy.append(f"{kind.decode('ascii')}-src 'sha256-{digest}'")
    return Reply(
        body,
        "text/html; charset=utf-8",
        headers=[
            (b"content-security-policy", "; ".join(policy).encode("ascii")),
            (b"referrer-policy", b"no-referrer"),
        ],
    )
