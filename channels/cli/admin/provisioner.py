"""`sika provisioner`: the service that starts a pod of Kubernetes for each sandbox."""

from __future__ import annotations

import argparse
import os
from signal import SIGINT, SIGTERM, Signals

import anyio

from channels.cli.common import OK
from channels.cli.verbs import Parser
from core.errors import Invalid

KEY = "SIKA_PROVISIONER_KEY"


def arguments(parser: Parser) -> None:
    parser.runs(_provisioner)
    parser.add_argument("--image", required=True, help="the all-in-one image, with a digest")
    parser.add_argument("--host", default="127.0.0.1", help=f"address to listen on; another than loopback needs ${KEY}")
    parser.add_argument("--port", type=int, default=8002, help="default: 8002")
    parser.add_argument("--kubernetes", metavar="URL", help="the API, as of `kubectl proxy` (default: of this pod)")
    parser.add_argument("--namespace", default="sika-sandboxes")
    parser.add_argument("--cpu", default="1", help="of one sandbox, as 500m")
    parser.add_argument("--memory", default="2Gi", help="of one sandbox")
    parser.add_argument("--storage", default="4Gi", help="of the files of one sandbox")
    parser.add_argument("--seconds", type=int, default=86_400, help="lifetime of a sandbox")
    parser.add_argument("--uid", type=int, default=1000, help="the user of the image's processes")
    parser.add_argument("--runtime-class", default="", metavar="NAME", help="as gvisor or kata")
    parser.add_argument("--network", action="store_true", help="let sandboxes reach the internet")
    parser.add_argument("--writable-root", action="store_true", help="for an image that needs it")
    parser.add_argument("--node-host", default="", metavar="HOST", help="give each sandbox a port of this node")


async def _provisioner(arguments: argparse.Namespace) -> int:
    from aiohttp import web

    from adapters.provisioner.app import Routes
    from adapters.provisioner.cluster import ACCOUNT, Cluster, in_cluster
    from adapters.provisioner.objects import Settings

    key = os.environ.get(KEY, "")
    if not key and arguments.host not in ("127.0.0.1", "::1", "localhost"):
        raise Invalid(f"--host {arguments.host}: set {KEY}, because others can reach this address")
    settings = Settings(
        image=arguments.image,
        namespace=arguments.namespace,
        cpu=arguments.cpu,
        memory=arguments.memory,
        storage=arguments.storage,
        seconds=arguments.seconds,
        uid=arguments.uid,
        runtime_class=arguments.runtime_class,
        network=arguments.network,
        read_only_root=not arguments.writable_root,
        node_port=bool(arguments.node_host),
        node_host=arguments.node_host,
    )
    account = None if arguments.kubernetes else ACCOUNT
    cluster = Cluster(arguments.kubernetes or in_cluster(), settings, account)
    runner = web.AppRunner(Routes(cluster, key).app(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, arguments.host, arguments.port).start()
        host, port, *_ = runner.addresses[0]
        print(f"Sika's provisioner: http://{host}:{port}", flush=True)
        with anyio.open_signal_receiver(*_signals()) as signals:
            async for _ in signals:
                break
    finally:
        await runner.cleanup()
    return OK


def _signals() -> tuple[Signals, ...]:
    return SIGTERM, SIGINT
