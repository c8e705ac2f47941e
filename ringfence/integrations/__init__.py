"""Ringfence in the web frameworks that applications already have.

One module per framework, each importing nothing but its framework and the client: `asgi`, `wsgi`,
`starlette`, `fastapi`, `flask`, `django`. What they ask of a limiter and what they answer is one
`policy` for all, so settings mean the same everywhere.
"""
