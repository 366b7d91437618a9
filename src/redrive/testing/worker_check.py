"""A conformance check for step workers in any language: the server's side of each edge case of the protocol.

A small server on the loopback hands out tasks, loses answers, refuses tickets and cancels steps, and notes what the
worker does. The worker needs three steps: `echo` returns its argument `value`, `fail` raises an error, and `slow` takes
`seconds` seconds.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

import msgspec

from redrive.clock import MICROS, SystemClock
from redrive.remote import step_worker_protocol as step_protocol
from redrive.remote import worker_protocol
from redrive.remote.worker_protocol import PROTOCOL

T = TypeVar("T")
_LONGEST_POLL = 2.0  # seconds: an empty answer is an edge case, too
_QUIET = 1.5  # seconds in which something must not happen
_PATHS = ("/api/v1/worker/", "/worker/")
_CLOCK = SystemClock()
_LIMITS = worker_protocol.WorkerLimits(payload=1 << 20, body=16 << 20, batch=256, claim=1)


class CheckResult(msgspec.Struct, frozen=True):
    """The result of one rule: `problem` is None if the worker conforms to it."""

    rule: str
    problem: str | None


class BrokenRule(Exception):
    """The worker did not do what a rule asks for."""


class _Drop(Exception):
    """The connection is closed without an answer."""


class _Refused(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class CheckServer:
    """The server of a check. `faults`: what happens to the next answers to a ticket, or to the next polls (`poll`)."""

    def __init__(self, token: str, queue: str, patience: float = 30.0) -> None:
        self.token, self.queue, self.patience = token, queue, patience
        self.changed = threading.Condition()
        self.faults: dict[str, list[str]] = {}
        self.cancelled: set[str] = set()
        self.not_to_begin: set[str] = set()
        self.registrations: list[worker_protocol.Registration] = []
        self.polls: list[step_protocol.TaskPoll] = []
        self.answers: list[tuple[float, str, Any]] = []  # when, ticket, report
        self.beats: list[str] = []  # the tickets of all heartbeats; an empty text for a beat without any
        self.begun: set[str] = set()
        self.retired = False
        self.problems: list[str] = []  # requests that no server would accept
        self._waiting: list[dict[str, Any]] = []
        self._count = 0
        self._expired = False

    # -- for the rules --------------------------------------------------------------------------------

    def offer(self, step: str, input: Any, *faults: str) -> str:
        """Let the worker get a task; return its ticket."""
        with self.changed:
            self._count += 1
            ticket = f"7-{self._count}-1-check"
            self.faults[ticket] = list(faults)
            self._waiting.append(
                {
                    "ticket": ticket, "run_id": "run-7", "workflow": "check", "step": step, "attempt": 1,
                    "input": input, "idempotency_key": f"key-{self._count}", "timeout_ms": 60_000, "tenant": "check",
                    "correlation_id": "run-7", "newer": {"a field": "of a later version"},
                }
            )  # fmt: skip
            self.changed.notify_all()
        return ticket

    def wait(self, find: Callable[[], T | None], otherwise: str, patience: float | None = None) -> T:
        """Return what is found as soon as it is; raise BrokenRule after the patience."""
        with self.changed:
            if not self.changed.wait_for(lambda: find() is not None, patience or self.patience):
                raise BrokenRule(otherwise)
            found = find()
            assert found is not None
            return found

    def reports(self, ticket: str) -> list[tuple[float, Any]]:
        """Return the answers to a ticket, and when they came."""
        return [(at, report) for at, each, report in self.answers if each == ticket]

    def wait_reports(self, ticket: str, count: int, otherwise: str) -> list[tuple[float, Any]]:
        """Wait for so many answers to a ticket."""
        return self.wait(lambda: found if len(found := self.reports(ticket)) >= count else None, otherwise)

    def expire(self) -> None:
        """Let the lease of the worker expire."""
        self._expired = True

    # -- requests -------------------------------------------------------------------------------------

    def handle(self, path: str, headers: Any, body: bytes) -> Any:
        """Return the answer to a request."""
        if headers.get("Authorization") != f"Bearer {self.token}":
            raise _Refused(401, "unauthorized")
        if path == "register":
            return self._register(self._read(path, body, worker_protocol.Registration))
        if self._expired or headers.get("Redrive-Worker") != str(len(self.registrations)):
            if path == "beat" and self._expired:
                return {"alive": False, "held": [], "now": _now()}
            raise _Refused(404, "not_found")
        if path == "steps/poll":
            return self._poll(self._read(path, body, step_protocol.TaskPoll))
        return self._handle_tickets(path, body)

    def _read(self, path: str, body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body or b"{}", type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.problems.append(f"the body of {path} does not fit: {error}")
            raise _Refused(422, "validation") from None

    def _register(self, call: worker_protocol.Registration) -> Any:
        with self.changed:
            self.registrations.append(call)
            self._expired = False
            self.changed.notify_all()
        reply = worker_protocol.Registered(
            worker=len(self.registrations), protocol=PROTOCOL, now=_now(), lease=call.lease,
            wait=int(_LONGEST_POLL * MICROS), limits=_LIMITS,
        )  # fmt: skip
        return msgspec.to_builtins(reply)

    def _poll(self, call: step_protocol.TaskPoll) -> Any:
        def find() -> list[dict[str, Any]]:
            return [task for task in self._waiting if task["step"] in call.steps]

        with self.changed:
            worker = len(self.registrations)
            self.polls.append(call)
            self.changed.notify_all()
            self._fail("poll")
            self.changed.wait_for(find, min(call.wait_ms / 1000, _LONGEST_POLL))
            if self._expired or worker != len(self.registrations):
                raise _Refused(404, "not_found")
            tasks = find()[: call.capacity]
            self._waiting = [task for task in self._waiting if task not in tasks]
            self.begun |= {task["ticket"] for task in tasks if call.begin}
        return {"tasks": tasks, "now": _now()}

    def _handle_tickets(self, path: str, body: bytes) -> Any:
        given = self._read(path, body, dict[str, Any])
        ticket, _, call = path.removeprefix("steps/").rpartition("/")
        with self.changed:
            try:
                if path == "beat":
                    self.beats += given.get("tickets") or [""]
                    told = sorted(self.cancelled.intersection(given.get("tickets", ())))
                    return {"alive": True, "held": [], "now": _now(), "cancelled": told}
                if path == "retire":
                    self.retired = True
                    return {"now": _now()}
                if path == "steps/begin":
                    return {"answers": [self._begin(each) for each in given["tickets"]]}
                if path == "steps/settle":
                    return {"answers": [self._answer(each["ticket"], each) for each in given["answers"]], "now": _now()}
                if call == "begin":
                    return self._begin(ticket)
                if call == "heartbeat":
                    self.beats.append(ticket)
                    return {"cancelled": ticket in self.cancelled, "now": _now()}
                if call in ("complete", "fail"):
                    reply = self._answer(ticket, given)
                    if reply["status"] == "LOST":
                        raise _Refused(409, "lost")
                    return reply
            finally:
                self.changed.notify_all()
        raise _Refused(404, "not_found")

    def _begin(self, ticket: str) -> Any:
        executes = ticket not in self.not_to_begin
        self.begun |= {ticket} if executes else set()
        return {"should_execute": executes, "now": _now()}

    def _answer(self, ticket: str, report: dict[str, Any]) -> dict[str, Any]:
        self.answers.append((_CLOCK.monotonic(), ticket, report))
        self._fail(ticket)
        if ticket in self.cancelled or "lost" in self.faults.get(ticket, ()):
            return {"status": "LOST", "ticket": ticket}
        return {"status": "FAILED" if report.get("error") is not None else "SUCCESS", "ticket": ticket}

    def _fail(self, what: str) -> None:
        faults = self.faults.get(what, [])
        if faults and faults[0] != "lost":
            fault = faults.pop(0)
            raise _Drop if fault == "drop" else _Refused(503, "unavailable")


def _first(items: Sequence[T]) -> T | None:
    return items[0] if items else None


def _now() -> int:
    return _CLOCK.now()


# -- rules --------------------------------------------------------------------------------------------


def _check_registration(server: CheckServer) -> None:
    call = server.wait(lambda: _first(server.registrations), "no registration came: is the worker running?")
    if server.queue not in (call.queues or ()):
        raise BrokenRule(f"it registered for the queues {call.queues}, not for {server.queue!r}")
    poll = server.wait(lambda: _first(server.polls), "it did not poll after its registration")
    if poll.queue != server.queue or not {"echo", "fail", "slow"}.issubset(poll.steps):
        raise BrokenRule(f"it polled {poll.queue!r} for {poll.steps}: it needs the steps echo, fail and slow")


def _check_result(server: CheckServer) -> None:
    for value in (1, {"text": "żółć", "list": [None, 1.5]}):
        ticket = server.offer("echo", {"value": value})
        (_, report), *_ = server.wait_reports(ticket, 1, "no result came")
        if ticket not in server.begun:
            raise BrokenRule("it polled with begin=false and did not call begin before the step")
        if report.get("error") is not None or report.get("output") != value:
            raise BrokenRule(f"echo was given {value!r} and answered {report}")


def _check_failure(server: CheckServer) -> None:
    ticket = server.offer("fail", {})
    (_, report), *_ = server.wait_reports(ticket, 1, "no answer came")
    error = report.get("error")
    if not isinstance(error, str | dict) or not error:
        raise BrokenRule(f"an error is a text or an object with type and message: it sent {report}")


def _check_repeat(server: CheckServer) -> None:
    ticket = server.offer("echo", {"value": "again"}, "drop", "drop")
    found = server.wait_reports(ticket, 3, "an answer whose reply was lost was not repeated until there was one")
    if any(report.get("output") != "again" for _, report in found):
        raise BrokenRule(f"the repeated answers differ: {[report for _, report in found]}")


def _check_busy(server: CheckServer) -> None:
    ticket = server.offer("echo", {"value": 1}, "busy")
    (first, _), (second, _), *_ = server.wait_reports(ticket, 2, "an answer was not repeated after the status 503")
    if second - first < 0.9:
        raise BrokenRule(f"Retry-After was 1 s, and the next request came after {second - first:.2f} s")


def _check_lost(server: CheckServer) -> None:
    ticket = server.offer("echo", {"value": 1}, "lost")
    server.wait_reports(ticket, 1, "no answer came")
    time.sleep(_QUIET)
    # One that answers many tickets at once may ask about a lost one alone.
    if len(server.reports(ticket)) > 2:
        raise BrokenRule("an answer that was refused with 409 (lost) was sent again and again")


def _check_begin(server: CheckServer) -> None:
    if all(poll.begin for poll in server.polls):
        return  # its tasks have begun when it gets them
    server.not_to_begin.add(ticket := server.offer("echo", {"value": 1}))
    later = server.offer("echo", {"value": 2})
    server.wait_reports(later, 1, "no result came")
    if server.reports(ticket):
        raise BrokenRule("it executed a step although should_execute was false")


def _check_lease(server: CheckServer) -> None:
    lease = server.registrations[-1].lease / MICROS
    seen = len(server.beats)
    ticket = server.offer("slow", {"seconds": 2})
    server.wait_reports(ticket, 1, "no result of the slow step came")
    if ticket not in server.beats[seen:] and lease < 10:
        raise BrokenRule("no heartbeat named the step that was under way")
    if not server.beats:
        server.wait(lambda: server.beats or None, f"no heartbeat came within half the lease of {lease:g} s", lease / 2)


def _check_cancel(server: CheckServer) -> None:
    seconds = 4
    ticket = server.offer("slow", {"seconds": seconds})
    server.wait(lambda: ticket if ticket in server.begun else None, "the slow step was not begun")
    server.cancelled.add(ticket)
    server.wait(
        lambda: ticket if ticket in server.beats else None,
        "no heartbeat asked about a step that was cancelled",
        seconds,
    )
    time.sleep(seconds)
    if any(report.get("error") is None for _, report in server.reports(ticket)):
        raise BrokenRule("a cancelled step went on to its end and sent a result")


def _check_errors(server: CheckServer) -> None:
    before = len(server.polls)
    server.faults["poll"] = ["busy", "drop"]
    server.wait(lambda: server.polls[before + 2 :] or None, "it did not poll again after errors of the server")
    server.wait_reports(server.offer("echo", {"value": 1}), 1, "it executed no steps after errors of the server")


def _check_expiry(server: CheckServer) -> None:
    count = len(server.registrations)
    server.expire()
    server.wait(lambda: server.registrations[count:] or None, "it did not register again when its lease had expired")
    server.wait_reports(server.offer("echo", {"value": 1}), 1, "it executed no steps after the new registration")


def _check_requests(server: CheckServer) -> None:
    if server.problems:
        raise BrokenRule(server.problems[0])


RULES: Sequence[tuple[str, Callable[[CheckServer], None]]] = (
    ("registers with its queue, and polls for its steps", _check_registration),
    ("executes tasks and sends their results; ignores fields that it does not know", _check_result),
    ("sends an error as a failure", _check_failure),
    ("repeats an answer until there is a reply", _check_repeat),
    ("waits as long as Retry-After says", _check_busy),
    ("drops an answer that is lost (409)", _check_lost),
    ("executes nothing that it may not begin", _check_begin),
    ("sends heartbeats within its lease", _check_lease),
    ("stops a step that is cancelled", _check_cancel),
    ("polls again after errors of the server", _check_errors),
    ("registers again when its lease has expired", _check_expiry),
    ("sends requests that fit the protocol", _check_requests),
)


def check_stop(server: CheckServer, stop: Callable[[], int | None]) -> None:
    """Check that a worker that is told to stop ends its steps, and takes no more. `stop` returns its exit code."""
    ticket = server.offer("slow", {"seconds": 2})
    server.wait(lambda: ticket if ticket in server.begun else None, "the slow step was not begun")
    code = stop()
    if code is None:
        raise BrokenRule(f"the worker did not end within {server.patience:g} s after SIGTERM")
    if not server.reports(ticket):
        raise BrokenRule("the worker ended without the result of the step that was under way")
    if code != 0:
        raise BrokenRule(f"the worker ended with exit code {code} after SIGTERM")


def check_worker(server: CheckServer) -> Iterator[CheckResult]:
    """Yield the result of each rule. Without a worker there is only the first."""
    for rule, check in RULES:
        yield (result := check_rule(server, rule, check))
        if result.problem is not None and not server.polls:
            return


def check_rule(server: CheckServer, rule: str, check: Callable[[CheckServer], None]) -> CheckResult:
    """Return the result of one rule."""
    try:
        check(server)
    except BrokenRule as broken:
        return CheckResult(rule, str(broken))
    return CheckResult(rule, None)


@contextmanager
def serving(server: CheckServer, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve requests to the worker from threads; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = next((self.path.removeprefix(each) for each in _PATHS if self.path.startswith(each)), self.path)
            try:
                self._reply(200, server.handle(path, self.headers, body))
            except _Drop:
                self.close_connection = True
            except _Refused as refused:
                self._reply(refused.status, {"status": refused.status, "code": refused.code, "title": refused.code})

        def _reply(self, status: int, value: Any) -> None:
            text = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            if status == 503:
                self.send_header("Retry-After", "1")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None: ...  # a worker that has gone

    with Server((host, port), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        try:
            yield f"http://{host}:{httpd.server_address[1]}"
        finally:
            httpd.shutdown()
