"""A FastAPI service whose limits are the cluster's. See README.md."""

from typing import Annotated

from fastapi import FastAPI, HTTPException

from ringfence import Decision
from ringfence.integrations.fastapi import RateLimits

# The address of the cluster is in the environment: RINGFENCE_URL.
limits = RateLimits(domain="web", keys="client=ip")
app = FastAPI(title="Reports")
limits.install(app)


@app.get("/")
async def index() -> str:
    """Limited by the rules of the domain `web`, as everything here."""
    return "hello"


@app.get("/report", dependencies=[limits.depends("5/minute")])
async def report() -> str:
    """Limited by itself, too."""
    return "report"


@app.get("/budget")
async def budget(
    decision: Annotated[Decision | None, limits.depends("100/hour")],
) -> dict[str, object]:
    """Views may look at the decision, which is None if no limit counts the request."""
    if decision is None:
        return {}
    return {"limit": decision.limit, "remaining": decision.remaining}


_failures = limits.depends("3/minute", deduct_when=lambda response: response.status == 401)


@app.post("/login", dependencies=[_failures])
async def login(password: str) -> str:
    """Only failures count."""
    if password != "open sesame":  # noqa: S105 - not a secret
        raise HTTPException(401)
    return "welcome"


@app.get("/healthz")
async def healthz() -> str:
    """Exempt, as health checks are."""
    return "ok"
