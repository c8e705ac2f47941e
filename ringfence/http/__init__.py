"""HTTP functions that all integrations and the gateway share: client addresses, keys, 429
responses.

They need no server and no framework, and do no I/O. A client gets the same keys and the same
responses from every integration.
"""

from ringfence.http.addresses import ClientAddress
from ringfence.http.headers import HeaderStyle, LimitHeaders, Reset
from ringfence.http.keys import KeyFunction, Keys, KeySpec, PlainRequest, Request
from ringfence.http.request_headers import RequestHeaders
from ringfence.http.too_many_requests_body import (
    Body,
    Refused,
    Template,
    prefers_html,
    refused_body,
)

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
