"""A Flask service with the limits of a cluster. See README.md."""

from flask import Flask, abort, request

from ringfence.integrations.flask import RateLimits

app = Flask(__name__)
# The address of the cluster is in the environment: RINGFENCE_URL.
limits = RateLimits(app, domain="web", keys="client=ip")


@app.get("/")
def index() -> str:
    """Limited by the rules of the domain `web`, as all views here."""
    return "hello"


@app.get("/report")
@limits.limit("5/minute")
def report() -> str:
    """Has its own limit too."""
    return "report"


@app.post("/login")
@limits.limit("3/minute", deduct_when=lambda response: response.status == 401)
def login() -> str:
    """Count failed logins only."""
    if request.args.get("password") != "open sesame":
        abort(401)
    return "welcome"


@app.get("/static-page")
@limits.exempt
def static_page() -> str:
    """Exempt from all limits."""
    return "a page"


@app.get("/healthz")
def healthz() -> str:
    """Exempt from limits, because its path is a usual path of health checks."""
    return "ok"
