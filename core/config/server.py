"""Settings of the server: HTTP, accounts, NATS, runs, files, metrics and traces."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from core.config.sections import Positive, Seconds, Secret, Section

_ORIGIN = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Http(Section, frozen=True, kw_only=True):
    """The HTTP server."""

    host: str = "127.0.0.1"
    """Address to listen on. An address that other machines can reach needs `auth.enabled`."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 2026
    """Port to listen on; 0 takes a free one."""
    max_body_bytes: Positive = 8 * 1024 * 1024
    """The largest request body. Uploads have their own limits (`uploads`)."""
    heartbeat_seconds: Seconds = 5
    """Interval of comment lines in a quiet stream, so that proxies keep it open."""
    cors_origins: tuple[str, ...] = ()
    """Origins of other web pages that may call the API. Default: the variable `GATEWAY_CORS_ORIGINS`."""
    public_url: str | None = None
    """The address that people use, if it is not `host:port`, as `https://sika.example.org`: without a path. What the
    agent does cannot reach it."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose `X-Forwarded-For`, `-Proto` and `-Host` (or `Forwarded`) are believed.
    Default: the variable `AUTH_TRUSTED_PROXIES`."""
    docs: bool = True
    """True if `/docs` and `/openapi.json` are served. Default: the variable `GATEWAY_ENABLE_DOCS`, or true."""
    request_timeout_seconds: Seconds = 20
    """Time for the headers of a request, and for its body: one second more for each 500 bytes."""
    max_connections_per_address: Positive = 512
    """Open connections of one client address. This machine and trusted proxies are not counted."""
    drain_seconds: Annotated[float, msgspec.Meta(ge=0, le=20)] | None = None
    """Time for which a server that is to end serves on. `/ready` answers 503 meanwhile, so that balancers turn to
    others, and runs and streams come to their ends. Default: 5 with a NATS that other servers may share (`nats.url`),
    else 0."""

    def __post_init__(self) -> None:
        for proxy in self.trusted_proxies:
            try:
                ipaddress.ip_network(proxy, strict=False)
            except ValueError:
                raise ValueError(f"trusted_proxies: an address or a network is expected, got {proxy!r}") from None
        if self.public_url is not None and not _ORIGIN.fullmatch(self.public_url):
            raise ValueError("public_url: expected http(s)://name[:port] without a path")


class OidcProvider(Section, frozen=True, kw_only=True):
    """Identity providers (OpenID Connect). Each needs the redirect address `/api/v1/auth/callback/<name>`."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
    """The provider's name in addresses: letters, digits, `_` and `-`."""
    issuer: str
    """The provider's address, with https. The rest is read from its `/.well-known/openid-configuration`."""
    client_id: str
    """The id that the provider has for this server."""
    client_secret: Secret | None = None
    """The secret that belongs to the id."""
    display_name: str | None = None
    """The provider's name on pages. Default: `name`."""
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    """Scopes to request from the provider."""
    allowed_domains: tuple[str, ...] = ()
    """Domains: people with a verified address in one of them may sign in. Without it: people with an account."""

    def __post_init__(self) -> None:
        place = urlsplit(self.issuer)
        if place.scheme != "https" and not (place.scheme == "http" and place.hostname in _LOOPBACK):
            raise ValueError("issuer: expected an address that begins with https://")


class Auth(Section, frozen=True, kw_only=True):
    """Accounts and signing in. Replicas without a common data directory need the same `SIKA_JWT_SECRET` and
    `SIKA_INTERNAL_TOKEN` in their environment.
    """

    enabled: bool = False
    """True if every request needs an account: a session or an API key. Turning it on takes effect at once, turning it
    off needs a restart."""
    registration: bool = False
    """True if people may make accounts for themselves, and with them run commands. Otherwise: `sika user create`."""
    session_days: Annotated[float, msgspec.Meta(gt=0, le=365)] = 7
    """Days until a person has to sign in again."""
    oidc: tuple[OidcProvider, ...] = ()

    def __post_init__(self) -> None:
        names = [provider.name for provider in self.oidc]
        if len(set(names)) < len(names):
            raise ValueError("oidc: two providers have the same name")


class Limits(Section, frozen=True, kw_only=True):
    """Limits of each user. Without a number there is no limit."""

    max_concurrent_runs: Positive | None = None
    """Runs at work or in the queue, over all replicas."""
    requests_per_minute: Positive | None = None
    """Requests to one server process."""
    tokens_per_day: Positive | None = None
    """Tokens in a day, those of titles, goals, suggestions and memory included; then no more runs until 0:00 UTC."""
    exempt_admins: bool = True
    """True if administrators have no limits. Without accounts everybody is one."""


class Tls(Section, frozen=True, kw_only=True):
    """TLS for the connection to NATS."""

    ca: str | None = None
    """File with the certificate authority that signed the NATS server's certificate."""
    cert: str | None = None
    """File with this server's own certificate, if NATS asks for one."""
    key: str | None = None
    """File with the key of that certificate."""


class Nats(Section, frozen=True, kw_only=True):
    """The NATS server that holds the log."""

    url: str | None = None
    """Address of a server, or of several with commas: `nats://one:4222,nats://two:4222`. Without it, `sika serve`
    starts a nats-server of its own in the data directory."""
    user: str | None = None
    """User name. Use a name and a password, or a token, or a credentials file."""
    password: Secret | None = None
    """Password of the user."""
    token: Secret | None = None
    """Token."""
    credentials: str | None = None
    """Path of a credentials file."""
    tls: Tls | None = None
    prefix: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]+\Z")] = "sika"
    """First word of all subjects, so that several installations can share one NATS."""
    replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    """Copies of the log; 3 in a cluster. A server raises the copies of an installation to this number; only
    `sika cluster replicas` lowers them."""
    start_seconds: Seconds = 300
    """Time that `sika serve` waits at the start for NATS."""

    def __post_init__(self) -> None:
        if self.url and "@" in self.url:
            raise ValueError("no credentials in the address; use nats.user and nats.password, or nats.token")


class Runs(Section, frozen=True, kw_only=True):
    """The execution of runs."""

    lease_seconds: Annotated[int, msgspec.Meta(ge=2, le=60)] = 10
    """Time after which the runs of a dead server process continue in another one. In a cluster the longest of all
    processes counts; `sika cluster lease` lowers it."""
    max_concurrent: Positive | None = None
    """Runs that one server process works on at the same time; those of subagents are counted by themselves. Without a
    number as many as the machine bears: a process takes on no more while its event loop is late or its memory is
    nearly used up. Runs over the bound wait in a queue that is fair to users; `/ready` says what the bound is."""
    max_waiting: Positive = 5_000
    """Runs that wait for a place, from which on a new one is refused (503, with the time after which to come again)."""
    recursion_limit: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 3000
    """Model calls of one run, if the client does not set a number; then the agent answers once more, without tools. The
    default is eight hours of work with a call every ten seconds. LangGraph and DeerFlow mean steps by this name, of
    which a call and its tools are two: here, a number from there allows twice the work."""
    max_recursion_limit: Positive = 10_000
    """The most model calls that a run gets, whatever number the client sets."""
    multitask_strategy: Literal["reject", "enqueue", "interrupt", "rollback"] = "reject"
    """The fate of a request for a run while another one is at work on its thread, if the request says nothing: it is
    refused (409, as DeerFlow does), waits (as LangGraph's server does), or ends the other one."""
    max_model_attempts: Positive = 3
    """Attempts of one model call."""


class Webhooks(Section, frozen=True, kw_only=True):
    """Webhooks: the outcome of a run, posted to the address that its client gave."""

    secret: Secret | None = None
    """Signs what is posted (Standard Webhooks). Default: `secrets/webhook_secret` in the data directory."""
    allow_private: bool = False
    """True if addresses inside your network, and addresses without https, are allowed."""
    timeout_seconds: Seconds = 10
    """Time for one attempt."""


class Uploads(Section, frozen=True, kw_only=True):
    """Files that people upload to a thread."""

    max_files: Positive = 10
    """Files in one request."""
    max_file_size: Positive = 50 * 1024 * 1024
    """Bytes of one file."""
    max_total_size: Positive = 100 * 1024 * 1024
    """Bytes in one request."""
    auto_convert_documents: bool = False
    """True if PDF and office files get a Markdown copy beside them when they are uploaded. The agent can read them
    without it: `read_file` converts a document that it opens."""
    convert_unconfined: bool = False
    """True if files are converted also where bubblewrap does not work: with the rights of the server."""


class Metrics(Section, frozen=True, kw_only=True):
    """Numbers for Prometheus, at `/metrics`."""

    enabled: bool = True
    """True if `/metrics` is served, to administrators."""
    public: bool = False
    """True if everybody who reaches the server may read them."""


class LangSmith(Section, frozen=True, kw_only=True):
    """LangSmith. A key that is not set has its variable: `LANGSMITH_TRACING`, `LANGSMITH_API_KEY` and so on."""

    enabled: bool | None = None
    """True if runs are sent there."""
    api_key: Secret | None = None
    """API key of LangSmith."""
    project: str | None = None
    """Name of the project."""
    endpoint: str | None = None
    """Address of the service."""


class Langfuse(Section, frozen=True, kw_only=True):
    """Langfuse; needs the package `langfuse`. A key that is not set has its variable: `LANGFUSE_TRACING`,
    `LANGFUSE_PUBLIC_KEY` and so on.
    """

    enabled: bool | None = None
    """True if runs are sent there."""
    public_key: str | None = None
    """Public key of Langfuse."""
    secret_key: Secret | None = None
    """Secret key of Langfuse."""
    base_url: str | None = None
    """Address of the service."""


class Otlp(Section, frozen=True, kw_only=True):
    """OpenTelemetry: spans and metrics of runs, model calls and tool calls, without their texts."""

    endpoint: str | None = None
    """Address of a collector that takes OTLP over HTTP, as `http://127.0.0.1:4318`. Without it nothing is sent.
    Certificates and compression: the variables `OTEL_EXPORTER_OTLP_CERTIFICATE` and `OTEL_EXPORTER_OTLP_COMPRESSION`.
    """
    headers: Mapping[str, Secret] = {}
    """Headers for the collector, as `Authorization: $COLLECTOR_AUTHORIZATION`."""
    service_name: str = "sika"
    """The name of this server in the traces."""

    def __post_init__(self) -> None:
        if self.endpoint is not None and not re.match(r"https?://[^/\s]", self.endpoint):
            raise ValueError("endpoint: expected http(s)://name[:port]")


class Tracing(Section, frozen=True, kw_only=True):
    """Traces of runs for other tools."""

    environment: str | None = None
    """Name of the environment in traces, as `production`. Default: `DEER_FLOW_ENV` or `ENVIRONMENT`."""
    langsmith: LangSmith = LangSmith()
    langfuse: Langfuse = Langfuse()
    otlp: Otlp = Otlp()
