"""A FastAPI service with the limits of a cluster. See README.md."""

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
    """Limited by the rules of the domain `web`, as all views here."""
    return "hello"


@app.get("/report", dependencies=[limits.depends("5/minute")])
async def report() -> str:
    """Has its own limit too."""
    return "report"


@app.get("/budget")
async def budget(
    decision: Annotated[Decision | None, limits.depends("100/hour")],
) -> dict[str, object]:
    """Read the decision, which is None if no limit applies to the request."""
    if decision is None:
        return {}
    return {"limit": decision.limit, "remaining": decision.remaining}


_failures = limits.depends("3/minute", deduct_when=lambda response: response.status == 401)


@app.post("/login", dependencies=[_failures])
async def login(password: str) -> str:
    """Count failed logins only."""
    if password != "open sesame":  # noqa: S105 - not a secret
        raise HTTPException(401)
    return "welcome"


@app.get("/healthz")
async def healthz() -> str:
    """Exempt from limits, because its path is a usual path of health checks."""
    return "ok"
