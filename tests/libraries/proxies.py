"""Real proxies that send a failed gRPC call on to the next server: Envoy, nginx and HAProxy."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.ports import free_port
from tests.helpers.waiting import DEADLINE_S, until

__all__ = ["PROXIES", "proxied"]

_ENVOY_RETRIES = (
    "5xx,reset,connect-failure,refused-stream,retriable-4xx,"
    "cancelled,deadline-exceeded,internal,resource-exhausted,unavailable"
)


def _envoy(port: int, servers: list[int], directory: Path) -> list[str]:
    h2 = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    http = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    router = "envoy.extensions.filters.http.router.v3.Router"
    kind = "type.googleapis.com/"
    previous = "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
    retries = {
        "retry_on": _ENVOY_RETRIES,
        "num_retries": 3,
        "host_selection_retry_max_attempts": 3,
        "retry_host_predicate": [
            {"name": "previous", "typed_config": {"@type": kind + previous}},
        ],
    }
    route = {"cluster": "servers", "timeout": "0s", "retry_policy": retries}
    manager = {
        "@type": kind + http,
        "stat_prefix": "in",
        "codec_type": "HTTP2",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "include_request_attempt_count": True,
                    "routes": [{"match": {"prefix": "/"}, "route": route}],
                }
            ]
        },
        "http_filters": [
            {"name": "envoy.filters.http.router", "typed_config": {"@type": kind + router}}
        ],
    }
    config = {
        "static_resources": {
            "listeners": [
                {
                    "address": _address(port),
                    "filter_chains": [{"filters": [{"name": "in", "typed_config": manager}]}],
                }
            ],
            "clusters": [
                {
                    "name": "servers",
                    "type": "STATIC",
                    "connect_timeout": "1s",
                    "typed_extension_protocol_options": {
                        h2: {
                            "@type": kind + h2,
                            "explicit_http_config": {"http2_protocol_options": {}},
                        }
                    },
                    "load_assignment": {
                        "cluster_name": "servers",
                        "endpoints": [
                            {
                                "lb_endpoints": [
                                    {"endpoint": {"address": _address(server)}}
                                    for server in servers
                                ]
                            }
                        ],
                    },
                }
            ],
        }
    }
    (directory / "envoy.json").write_text(json.dumps(config))
    beside = Path(sys.executable).with_name("envoy")
    binary = str(beside) if beside.exists() else "envoy"
    path = str(directory / "envoy.json")
    return [binary, "-c", path, "--concurrency", "1", "--disable-hot-restart", "-l", "error"]


def _address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _nginx(port: int, servers: list[int], directory: Path) -> list[str]:
    listed = "\n".join(f"server 127.0.0.1:{server} max_fails=0;" for server in servers)
    paths = "\n".join(
        f"{name}_temp_path {directory}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (directory / "nginx.conf").write_text(
        f"""
daemon off; master_process off; pid {directory}/nginx.pid; error_log {directory}/nginx.log;
events {{ }}
http {{
  access_log off;
  {paths}
  upstream servers {{ {listed} }}
  server {{
    listen 127.0.0.1:{port} http2;
    location / {{
      grpc_pass grpc://servers;
      grpc_read_timeout 60s;
      grpc_next_upstream error timeout invalid_header http_500 http_502 http_503 http_504
        non_idempotent;
      grpc_next_upstream_tries 3;
    }}
  }}
}}
"""
    )
    return [_found("nginx"), "-e", f"{directory}/nginx.log", "-c", f"{directory}/nginx.conf"]


def _haproxy(port: int, servers: list[int], directory: Path) -> list[str]:
    listed = "\n".join(f"  server s{server} 127.0.0.1:{server} proto h2" for server in servers)
    (directory / "haproxy.cfg").write_text(
        f"""
defaults
  mode http
  timeout connect 1s
  timeout client 60s
  timeout server 60s
  option redispatch 1
  retries 3
  retry-on all-retryable-errors
frontend in
  bind 127.0.0.1:{port} proto h2
  default_backend servers
backend servers
  balance roundrobin
{listed}
"""
    )
    return [_found("haproxy"), "-db", "-f", f"{directory}/haproxy.cfg"]


PROXIES = {"envoy": _envoy, "nginx": _nginx, "haproxy": _haproxy}


def _found(program: str) -> str:
    return shutil.which(program) or f"/usr/sbin/{program}"


@contextlib.contextmanager
def proxied(kind: str, servers: list[int], directory: Path) -> Iterator[str]:
    """Run a proxy in front of these ports of this machine; yields its address."""
    port = free_port()
    command = PROXIES[kind](port, servers, directory)
    log = (directory / f"{kind}.out").open("wb")
    with log, subprocess.Popen(command, stdout=log, stderr=log) as proxy:
        try:
            until(lambda: _listens(port) or proxy.poll() is not None, f"{kind} listens")
            assert proxy.poll() is None, (directory / f"{kind}.out").read_text()[-2000:]
            yield f"127.0.0.1:{port}"
        finally:
            proxy.kill()
            proxy.wait(DEADLINE_S)


def _listens(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
