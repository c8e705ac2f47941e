"""What limiting over HTTP takes, whoever serves it: client addresses, keys, headers and bodies.

Plain functions over values: no server, no framework, no I/O. The middlewares and the gateway share
them, so that one client meets the same keys and the same answers at every face.
"""

from ringfence.http.addresses import ClientAddress
from ringfence.http.bodies import Body, Refused, Template, prefers_html, refused_body
from ringfence.http.headers import HeaderStyle, LimitHeaders, Reset
from ringfence.http.keys import KeyFunction, Keys, KeySpec, PlainRequest, Request
from ringfence.http.request_headers import RequestHeaders

__all__ = [
    "Body",
    "ClientAddress",
    "HeaderStyle",
    "KeyFunction",
    "KeySpec",
    "Keys",
    "LimitHeaders",
    "PlainRequest",
    "Refused",
    "Request",
    "RequestHeaders",
    "Reset",
    "Template",
    "prefers_html",
    "refused_body",
]
