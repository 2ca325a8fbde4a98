"""The webhook posts every finding in order, tries again, and gives up in the open; against a real server."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from aggregator.detect.finding import Finding
from aggregator.sinks.webhook import Webhook
from rankside.errors import ConfigError


def finding(step):
    return Finding(
        kind="outlier",
        ranks=(1,),
        tag="loss",
        first_step=step,
        step=step,
        persistence="chronic",
        score=float("inf"),
        evidence={},
        message="rank 1: loss has moved",
    )


class Receiver(HTTPServer):
    """Answers the first posts with the given codes, all others with 200, and keeps what it got."""

    def __init__(self, *codes):
        super().__init__(("127.0.0.1", 0), Answering)
        self.codes, self.got = list(codes), []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/hook"
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def stop(self):
        self.shutdown()
        self.thread.join()
        self.server_close()


class Answering(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        code = self.server.codes.pop(0) if self.server.codes else 200
        if code == 200:
            self.server.got.append(body)
        self.send_response(code)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def receiver():
    server = Receiver(503, 503)
    yield server
    server.stop()


def test_findings_arrive_once_each_in_order_though_the_first_posts_fail(receiver):
    hook = Webhook(receiver.url, run="r", retry_seconds=(0.01, 0.01, 0.01))
    for step in (1, 2, 3):
        hook.announce(finding(step))
    hook.close()
    assert [(body["run"], body["step"], body["score"]) for body in receiver.got] == [
        ("r", 1, "inf"),
        ("r", 2, "inf"),
        ("r", 3, "inf"),
    ]
    assert hook.undelivered == 0


def test_what_cannot_be_delivered_is_counted_and_closing_is_bounded():
    server = Receiver()
    server.stop()  # nobody listens there any more
    hook = Webhook(server.url, run="r", retry_seconds=(0.01,), close_seconds=5.0)
    hook.announce(finding(1))
    hook.announce(finding(2))
    hook.close()
    assert hook.undelivered == 2


def test_another_kind_of_address_is_refused_with_the_accepted_ones():
    with pytest.raises(ConfigError, match="http:// or https://"):
        Webhook("file:///etc/passwd", run="r")
