"""Recorded HTTP answers: the same request gets the same answer in every fork, and nothing ever leaves by itself."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from forkgym.sandbox import HttpCassette, Network, NetworkError, Sandbox, SandboxClosedError, image_store
from forkgym.sandbox.network import Request, Rules
from forkgym.sandbox.network import upstream as upstream_module
from forkgym.sandbox.network.authority import Authority
from forkgym.sandbox.network.exchange import normal_url, request_key

Create = Callable[..., Sandbox]
needs_openssl = pytest.mark.skipif(not Authority.available(), reason="there is no openssl to make an authority with")


class _World(BaseHTTPRequestHandler):
    """A server whose every answer is another one, so that a repeated answer can only be a recorded one."""

    protocol_version = "HTTP/1.1"
    seen: list[str]

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append(f"{self.command} {self.path} {body.decode('latin-1')}")
        status, headers, content = 200, {}, f"{self.command} {self.path} number {len(self.seen)}\n".encode()
        if self.path == "/redirect":
            status, headers, content = 302, {"Location": "/end"}, b""
        elif self.path == "/zipped":
            headers, content = {"Content-Encoding": "gzip"}, gzip.compress(content)
        elif self.path == "/cookie":
            headers = {"Set-Cookie": "session=SECRET"}
        elif self.path == "/large":
            content = b"x" * 5000
        elif self.path == "/missing":
            status = 404
        elif self.path == "/chunked":
            headers, content = {"Transfer-Encoding": "chunked"}, b"4\r\nfour\r\n0\r\n\r\n"
        elif self.path == "/cut":
            headers = {"Content-Length": "999"}
        self.send_response(status)
        if "Transfer-Encoding" not in headers:
            headers = {"Content-Length": str(len(content)), **headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.close_connection = self.path == "/cut"

    do_POST = do_HEAD = do_PUT = do_GET

    def log_message(self, *_: Any) -> None:
        pass


class World:
    """The server, its address, and what it was asked."""

    def __init__(self, tls: Any = None) -> None:
        self.seen: list[str] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("_Own", (_World,), {"seen": self.seen}))
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        self.url = f"http{'s' if tls else ''}://{self.host}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.close()


def get(world: World, path: str, *options: str) -> str:
    """A command that asks the world (loopback addresses are asked directly otherwise)."""
    return f"curl -sS --noproxy '' --proxy $http_proxy {' '.join(options)} '{world.url}{path}'"


def record(path: Path, world: World, create: Create, *commands: str, **options: Any) -> list[str]:
    with Network(HttpCassette(path, "record", hosts=(world.host,), **options)) as network:
        sandbox = create(network=network)
        return [sandbox.run(command).stdout for command in commands]


SAME = [
    ("http://EXAMPLE.org", "http://example.org/"),
    ("http://example.org:80/a", "http://example.org/a"),
    ("https://example.org:443/a", "https://example.org/a"),
    ("http://user:word@example.org/a", "http://example.org/a"),
    ("http://example.org/a#part", "http://example.org/a"),
    ("http://example.org/%7Ea/%c3%a9", "http://example.org/~a/%C3%A9"),
    ("http://example.org/?b=2&a=1", "http://example.org/?a=1&b=2"),
    ("http://example.org/?api_key=one", "http://example.org/?api_key=two"),
    ("http://[::1]:80/", "http://[::1]/"),
    ("http://example.org/\u6f22", "http://example.org/%E6%BC%A2"),
]
DIFFERENT = [
    ("http://example.org/a", "https://example.org/a"),
    ("http://example.org/a", "http://example.org:81/a"),
    ("http://example.org/a", "http://example.org/A"),
    ("http://example.org/a%2Fb", "http://example.org/a/b"),
    ("http://example.org/?a=1&a=2", "http://example.org/?a=2&a=1"),
    ("http://example.org/?token=1", "http://example.org/?token=2"),
    ("http://example.org/a", "http://example.org/a/"),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_one_place_has_one_name(first: str, second: str) -> None:
    assert normal_url(first, Rules()) == normal_url(second, Rules())
    assert normal_url(normal_url(first, Rules()), Rules()) == normal_url(first, Rules())


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_two_places_have_two_names(first: str, second: str) -> None:
    assert normal_url(first, Rules()) != normal_url(second, Rules())


@pytest.mark.parametrize("url", ["", "/a", "ftp://example.org/", "file:///etc/passwd", "http://", "http://a:b/"])
def test_what_is_no_web_address_is_refused(url: str) -> None:
    with pytest.raises(NetworkError, match="URL"):
        normal_url(url, Rules())


def _post(kind: str, body: bytes) -> str:
    request = Request("POST", "http://example.org/", (("Content-Type", kind),), body)
    return request_key(request, Rules()).body


def test_a_body_counts_by_what_it_says() -> None:
    form, parts = "application/x-www-form-urlencoded", "multipart/form-data; boundary="
    assert _post("application/json", b'{"a": 1, "b": [2]}') == _post("application/json", b'{"b":[2],"a":1}')
    assert _post("application/json", b'{"a": 1}') != _post("application/json", b'{"a": 2}')
    assert _post("application/json", b'{"a": 1, "a": 2}') != _post("application/json", b'{"a": 2}')
    assert _post("application/json", b"[" * 100_000) != _post("application/json", b"[" * 99_999)
    assert _post("text/plain", b'{"a": 1}') != _post("text/plain", b'{"a":1}')
    assert _post(form, b"b=2&a=1&password=x") == _post(form, b"a=1&b=2&password=y")
    assert _post(f"{parts}abc", b"--abc\r\n\r\nx\r\n--abc--") == _post(f"{parts}xyz", b"--xyz\r\n\r\nx\r\n--xyz--")
    assert _post("application/json", b'{"password": "x"}') == _post("application/json", b'{"password": "y"}')


def test_only_the_headers_that_count_do() -> None:
    def key(*headers: tuple[str, str], rules: Rules = Rules()) -> object:  # noqa: B008
        return request_key(Request("GET", "http://example.org/", headers), rules)

    assert key() == key(("Accept", "*/*")) == key(("User-Agent", "x"), ("Cookie", "y"), ("Authorization", "z"))
    assert key(("Accept", "text/html, text/plain")) == key(("accept", "text/html,text/plain"))
    assert key() != key(("Accept", "text/html"))
    assert key(("Range", "bytes=0-1")) != key(("Range", "bytes=0-2"))
    with pytest.raises(NetworkError, match="small letters"):
        Rules(headers=("X-Page",))
    assert key(("X-Page", "1"), rules=Rules(headers=("x-page",))) != key(rules=Rules(headers=("x-page",)))


def test_forks_replay_what_was_recorded(isolated: Create, world: World, tmp_path: Path) -> None:
    asks = [get(world, "/a"), get(world, "/a"), get(world, "/redirect", "-L"), get(world, "/missing", "-i")]
    asks += [get(world, "/chunked"), get(world, "/zipped"), get(world, "/p", "-d x=1"), get(world, "/h", "-I")]
    recorded = record(tmp_path / "cassette", world, isolated, *asks)
    assert recorded[0] == recorded[1] == "GET /a number 1\n", "the recording shows what the replay will"
    assert recorded[2].startswith("GET /end number")
    assert recorded[4:6] == ["four", f"GET /zipped number {world.seen.index('GET /zipped ') + 1}\n"]
    seen = len(world.seen)
    world.close()
    with Network(HttpCassette(tmp_path / "cassette")) as network:
        parent = isolated(network=network)
        child = parent.fork()
        for command, answer in zip(asks, recorded, strict=True):
            assert [side.run(command).stdout for side in (parent, child)] == [answer, answer]
        for side in (parent, child):
            side.run("; ".join(f"{command} >> all" for command in asks))
        assert parent.read("all") == child.read("all")
        assert parent.state_hash() == child.state_hash()
        assert network.cassette is not None
        assert network.cassette.misses == ()
    assert len(world.seen) == seen


def test_the_network_is_no_part_of_the_state(isolated: Create, world: World, tmp_path: Path) -> None:
    record(tmp_path / "cassette", world, isolated, get(world, "/a"))
    alone = isolated()
    alone.write("x", "1")
    with Network(HttpCassette(tmp_path / "cassette")) as network:
        together = isolated(network=network)
        together.write("x", "1")
        kept = together.snapshot()
        assert together.state_hash() == alone.state_hash()
        together.run("rm x")
        together.restore(kept)
        assert together.run(get(world, "/a")).ok


def test_a_miss_names_the_request_and_asks_nobody(isolated: Create, world: World, tmp_path: Path) -> None:
    record(tmp_path / "cassette", world, isolated, get(world, "/a?page=1", "-H 'Accept: text/plain'"))
    seen = list(world.seen)
    cassette = HttpCassette(tmp_path / "cassette")
    with Network(cassette) as network:
        sandbox = isolated(network=network)
        done = sandbox.run(get(world, "/a?page=2", "-H 'Accept: text/plain'", "-w '%{http_code}'"))
        assert done.stdout.endswith("504")
        assert f"no answer for GET {world.url}/a?page=2 (accept: text/plain)" in done.stdout
        assert "the query is 'page=2', recorded was 'page=1'" in done.stdout
        sandbox.run(get(world, "/a?page=1"))
    assert [miss.request for miss in cassette.misses] == [
        f"GET {world.url}/a?page=2 (accept: text/plain)",
        f"GET {world.url}/a?page=1",
    ]
    assert "accept is '*/*', recorded was 'text/plain'" in cassette.misses[1].reason
    assert world.seen == seen


def test_replay_never_calls_what_asks_the_world(
    isolated: Create, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: while recording the same call does ask."""
    calls = []
    monkeypatch.setattr(
        upstream_module, "fetch", lambda *a, **k: calls.append(a) or (_ for _ in ()).throw(NetworkError("x"))
    )
    record(tmp_path / "cassette", world, isolated, get(world, "/a"))
    assert len(calls) == 1
    with Network(HttpCassette(tmp_path / "cassette")) as network:
        isolated(network=network).run(get(world, "/a"))
    assert len(calls) == 1


def test_recording_asks_only_the_hosts_that_were_named(isolated: Create, world: World, tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="hosts="):
        HttpCassette(tmp_path / "cassette", "record")
    cassette = HttpCassette(tmp_path / "cassette", "record", hosts=("example.org", "127.0.0.1:1"))
    with Network(cassette) as network:
        done = isolated(network=network).run(get(world, "/a", "-w '%{http_code}'"))
    assert done.stdout.endswith("504")
    assert "not among the hosts that may be recorded: example.org, 127.0.0.1:1" in done.stdout
    assert world.seen == []


def test_secrets_are_not_written_down(isolated: Create, world: World, tmp_path: Path) -> None:
    ask = get(world, "/cookie?api_key=SECRET", "-H 'Authorization: Bearer SECRET'", "-b 'a=SECRET'", "-i")
    shown = record(tmp_path / "cassette", world, isolated, ask, get(world, "/cookie", "-i", "-d password=SECRET"))
    assert any("api_key=SECRET" in line for line in world.seen), "the server itself gets it"
    assert "SECRET" not in (tmp_path / "cassette").read_text().replace("api_key=SECRET number", "")
    assert "Set-Cookie" not in shown[0]


def test_failures_and_large_answers_are_not_recorded(isolated: Create, world: World, tmp_path: Path) -> None:
    path = tmp_path / "cassette"
    large, cut = record(path, world, isolated, get(world, "/large"), get(world, "/cut"), body_limit=4999)
    assert "larger than the 4999 bytes" in large
    assert "no whole answer" in cut
    assert len(HttpCassette(path)) == 0
    assert record(path, world, isolated, get(world, "/large"), body_limit=5000) == ["x" * 5000]
    assert len(HttpCassette(path)) == 1


def test_recording_again_adds_and_changes_nothing(isolated: Create, world: World, tmp_path: Path) -> None:
    path = tmp_path / "cassette"
    first = record(path, world, isolated, get(world, "/a"))
    before = path.read_bytes()
    assert record(path, world, isolated, get(world, "/a")) == first
    assert path.read_bytes() == before
    record(path, world, isolated, get(world, "/b"))
    assert path.read_bytes().startswith(before)
    assert HttpCassette(path).requests() == [f"GET {world.url}/a", f"GET {world.url}/b"]


def test_many_commands_at_once(isolated: Create, world: World, tmp_path: Path) -> None:
    paths = [f"/{number}" for number in range(12)]
    script = (
        "& ".join(get(world, path, f"-o {path[1:]}") for path in paths) + "& wait; cat $(ls | grep '^[0-9]' | sort -n)"
    )
    (recorded,) = record(tmp_path / "cassette", world, isolated, script)
    assert recorded.count("number") == 12
    with Network(HttpCassette(tmp_path / "cassette")) as network:
        sides = [isolated(network=network) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda side: side.run(script).stdout, sides)) == [recorded] * 4
        assert len({side.state_hash() for side in sides}) == 1


def test_one_request_at_many_moments_is_recorded_once(isolated: Create, world: World, tmp_path: Path) -> None:
    script = "& ".join([get(world, "/a")] * 8) + "& wait"
    (shown,) = record(tmp_path / "cassette", world, isolated, script)
    assert shown == "GET /a number 1\n" * 8
    assert len(world.seen) == 1


@needs_openssl
def test_https_is_recorded_and_replayed(isolated: Create, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(image_store())
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    world = World(tls=authority.context("127.0.0.1"))
    by_python = (
        "import urllib.request as u; u.getproxies = u.getproxies_environment; import os; os.environ['no_proxy'] = ''; "
        f"print(u.urlopen('{world.url}/p').read())"
    )
    asks = [get(world, "/a"), f'python3 -c "{by_python}"', "wget -qO- -e no_proxy= " + world.url + "/w"]
    asks = asks if shutil.which("wget") else asks[:2]
    recorded = record(tmp_path / "cassette", world, isolated, *asks)
    assert all("number" in answer for answer in recorded), recorded
    world.close()
    with Network(HttpCassette(tmp_path / "cassette")) as network:
        sandbox = isolated(network=network)
        assert [sandbox.run(ask).stdout for ask in asks] == recorded
        missed = sandbox.run("curl -sS https://example.org/x").stdout
        assert "no answer for GET https://example.org/x" in missed
        assert sandbox.run("grep -c BEGIN $SSL_CERT_FILE; ls -A /etc/ssl").stdout == "1\ncerts\n"
    outside = isolated().run("test -e /etc/ssl/certs/ca-certificates.crt")
    assert not outside.ok, "only these sandboxes know the authority"


@needs_openssl
def test_the_key_of_the_authority_is_nobodys_business() -> None:
    folder = Authority(image_store()).certificate.parent
    assert folder.stat().st_mode & 0o077 == 0
    with pytest.raises(NetworkError, match="no host name"):
        Authority(image_store()).context("a\nsubjectAltName = DNS:b")


def test_without_https_a_tunnel_is_refused_in_words(isolated: Create, tmp_path: Path, world: World) -> None:
    record(tmp_path / "cassette", world, isolated, get(world, "/a"))
    cassette = HttpCassette(tmp_path / "cassette")
    with Network(cassette, https=False) as network:
        done = isolated(network=network).run("curl -sS https://example.org/")
    assert not done.ok
    assert cassette.misses[0].request == "CONNECT example.org:443"
    assert "https" in cassette.misses[0].reason


def test_a_tunnel_leads_nowhere(isolated: Create, tmp_path: Path, world: World) -> None:
    """A command that asks for a tunnel to the world's port and speaks plain HTTP in it reaches nobody."""
    record(tmp_path / "cassette", world, isolated)
    cassette = HttpCassette(tmp_path / "cassette")
    with Network(cassette) as network:
        done = isolated(network=network).run(
            f"curl -sS -m 5 --noproxy '' --proxytunnel --proxy $http_proxy {world.url}/a"
        )
    assert not done.ok
    assert world.seen == []
    assert [miss.request for miss in cassette.misses] == [f"CONNECT {world.host}"]


HOSTILE = {
    "noise": b"\0\1\2\3\n\r\n",
    "no version": b"GET\r\n\r\n",
    "a length that is none": b"POST http://a/ HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    "a length beyond the limit": b"POST http://a/ HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
    "a chunk without a length": b"POST http://a/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "chunks beyond the limit": b"POST http://a/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFF\r\n",
    "a method nobody has": b"BREW http://a/ HTTP/1.1\r\n\r\n",
    "a long line": b"GET http://a/" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
    "many headers": b"GET http://a/ HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
    "a wrong address": b"GET http://[::1 HTTP/1.1\r\n\r\n",
    "a path out of the index": b"GET /files/../../../etc/passwd HTTP/1.1\r\n\r\n",
    "a header in an address": b"GET http://a/\x0bX-Evil:1 HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("attempt", HOSTILE)
def test_a_command_cannot_upset_the_answers(attempt: str, isolated: Create, tmp_path: Path, world: World) -> None:
    record(tmp_path / "cassette", world, isolated, get(world, "/a"))
    program = (
        "import socket, sys; s = socket.create_connection(('127.0.0.1', 887)); s.sendall(sys.stdin.buffer.read()); "
        "s.shutdown(1); data = b''.join(iter(lambda: s.recv(65536), b'')); sys.stdout.buffer.write(data)"
    )
    with Network(HttpCassette(tmp_path / "cassette")) as network:
        sandbox = isolated(network=network)
        done = sandbox.run(["python3", "-c", program], stdin=HOSTILE[attempt], timeout=10)
        assert not done.timed_out
        assert " 200 " not in done.stdout[:20]
        assert "root:" not in done.stdout
        assert sandbox.run(get(world, "/a")).stdout == "GET /a number 1\n"


def test_a_command_may_not_hold_all_connections(isolated: Create, tmp_path: Path, world: World) -> None:
    record(tmp_path / "cassette", world, isolated, get(world, "/a"))
    hold = (
        "import socket, time, sys; held = [socket.create_connection(('127.0.0.1', 887)) for _ in range(100)]; "
        "time.sleep(0.3); print(sum(s.setblocking(False) or not alive(s) for s in held))"
    )
    alive = "def alive(s):\n    try: return s.recv(1) != b''\n    except BlockingIOError: return True\n"
    with Network(HttpCassette(tmp_path / "cassette")) as network:
        greedy, other = isolated(network=network), isolated(network=network)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(greedy.run, ["python3", "-c", alive + hold])
            assert other.run(get(world, "/a")).ok
            assert waiting.result().stdout == "68\n"
        assert greedy.run(get(world, "/a")).ok


def test_a_sandbox_without_it_has_no_port(isolated: Create) -> None:
    done = isolated().run("curl -s -m 2 http://127.0.0.1:887/; env | grep -i proxy")
    assert done.stdout == ""


def test_a_command_cannot_take_the_port(isolated: Create, tmp_path: Path, world: World) -> None:
    record(tmp_path / "cassette", world, isolated)
    bind = "import socket; s = socket.socket(); s.setsockopt(1, 15, 1); s.bind(('127.0.0.1', {})); print('BROKEN')"
    with Network(HttpCassette(tmp_path / "cassette")) as network:
        sandbox = isolated(network=network)
        assert "BROKEN" in sandbox.run(["python3", "-c", bind.format(8870)]).stdout, (
            "the control: a port anyone may take"
        )
        assert "BROKEN" not in sandbox.run(["python3", "-c", bind.format(887)]).stdout


def test_a_closed_network_says_so(isolated: Create, world: World, tmp_path: Path) -> None:
    record(tmp_path / "cassette", world, isolated)
    network = Network(HttpCassette(tmp_path / "cassette"))
    sandbox = isolated(network=network)
    assert sandbox.run("true").ok
    network.close()
    network.close()
    with pytest.raises(SandboxClosedError, match="network"):
        sandbox.run("true")
    with pytest.raises(SandboxClosedError, match="network"):
        isolated(network=network)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_damaged_cassette_is_refused(isolated: Create, world: World, tmp_path: Path) -> None:
    path = tmp_path / "cassette"
    record(path, world, isolated, get(world, "/a"))
    head, body, answer = _lines(path)
    breakages = {
        "line 1": [{**head, "version": 2}],
        "line 2": [head, {**body, "text": "other"}],
        "does not stand before": [head, answer],
        "line break": [head, body, {**answer, "headers": [["A", "b\r\nSet-Cookie: c"]]}],
        "first line": [body, answer],
        "unknown field": [head, {**body, "more": 1}],
    }
    for reason, lines in breakages.items():
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with pytest.raises(NetworkError, match=reason):
            HttpCassette(path)
    with pytest.raises(NetworkError, match="no cassette"):
        HttpCassette(tmp_path / "nowhere")


def test_a_recording_that_was_cut_keeps_what_is_whole(isolated: Create, world: World, tmp_path: Path) -> None:
    path = tmp_path / "cassette"
    record(path, world, isolated, get(world, "/a"))
    whole = path.read_bytes()
    record(path, world, isolated, get(world, "/b"))
    for size in range(len(whole) + 1, path.stat().st_size, 37):
        torn = tmp_path / "torn"
        torn.write_bytes(path.read_bytes()[:size])
        if torn.read_bytes().endswith(b"\n"):
            continue
        with pytest.raises(NetworkError, match="cut"):
            HttpCassette(torn)
        assert HttpCassette(torn, "record", hosts=("a",)).requests() == [f"GET {world.url}/a"]


def test_a_forked_process_is_told(isolated: Create, world: World, tmp_path: Path) -> None:
    record(tmp_path / "cassette", world, isolated)
    with Network(HttpCassette(tmp_path / "cassette")) as network:
        sandbox = isolated(network=network)
        mine, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                sandbox.run("true")
            except Exception as error:
                theirs.sendall(str(error).encode())
            finally:
                os._exit(0)
        theirs.close()
        assert b"belongs to process" in mine.recv(1000)
        mine.close()
        os.waitpid(pid, 0)


def test_every_backend_replays(create: Create, kind: tuple[str, str], world: World, tmp_path: Path) -> None:
    (recorded,) = record(tmp_path / "cassette", world, create, get(world, "/a"))
    with Network(HttpCassette(tmp_path / "cassette")) as network:
        parent = create(network=network)
        child = parent.fork(mount=True)
        assert {side.run(get(world, "/a")).stdout for side in (parent, child)} == {recorded}
    assert recorded == "GET /a number 1\n"
