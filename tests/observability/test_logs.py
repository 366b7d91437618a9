"""The log lines that the source documents require: their fields, the decisions, and no secrets."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from engines import OnStore

import redrive
from redrive import NonRetryable, Redrive, RetryPolicy
from redrive.core.redact import Redactor
from redrive.observability.logs import RUN_FIELDS, AboutRun, ConsoleFormatter, JsonFormatter
from redrive.testing import Crash, engine, faults
from redrive.worker.context import log_context

SECRET = "password=hunter2-and-more"


@contextmanager
def lines() -> Iterator[list[dict[str, Any]]]:
    """Yield the JSON lines that are logged meanwhile, by the engine or by other code."""
    stream, told = io.StringIO(), list[dict[str, Any]]()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter(Redactor()))
    handler.addFilter(AboutRun(log_context))
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield told
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        told += [json.loads(line) for line in stream.getvalue().splitlines()]


def bank() -> tuple[Redrive, Any]:
    app = Redrive("sqlite:///:memory:")

    @app.step(retry=RetryPolicy(max_retries=2, base_delay=5, factor=2, jitter=0))
    async def transfer(amount: int) -> int:
        logging.getLogger("shop").info("transferring")
        return amount

    @app.workflow
    async def pay(amount: int) -> int:
        return await transfer(amount)

    return app, pay


async def test_retries_log_attempt_delay_and_reason_and_the_queue_story_its_error_record(on_store: OnStore) -> None:
    """Story 4-0, AC4: {message, jobId, runId, tenantId, error, attemptsMade}; the last error, no stack trace."""
    app, pay = bank()
    with lines() as told:
        async with on_store(app) as e:
            with faults(step="transfer", fail=[ConnectionError(SECRET)] * 3):
                run = await e.run(pay, 5, tenant="acme", correlation_id="req-7")
    engine_lines = [line for line in told if line["logger"] == "redrive.runs"]
    first, second, third, record = engine_lines
    about = {"run_id": run.id, "workflow": "pay", "tenant": "acme", "correlation_id": "req-7", "step": "transfer"}
    for number, line in enumerate((first, second, third), 1):
        assert line.items() >= {**about, "attempt": number, "level": "WARNING", "category": "network"}.items()
    assert first["decision"].startswith("attempt 1 of 3, network")
    assert "waiting 5 s" in first["decision"]
    assert "waiting 10 s" in second["decision"]
    assert "retries are exhausted" in third["decision"]
    assert record.items() >= {**about, "level": "ERROR", "attempts_made": 3, "code": "exhausted_retries"}.items()
    assert record["message"] == "Workflow execution failed after 3 attempts: ConnectionError: password=••••••"
    assert (record["error"], record["job_id"]) == ("ConnectionError: password=••••••", run.id)
    # The API returns the same: the sentence, the number of attempts, and the rule as separate fields.
    shown = run.described
    assert (shown.error, shown.attempts_made, shown.reason_code) == (record["message"], 3, "step_failed")
    assert shown.reason is not None
    assert "retries are exhausted" in shown.reason
    assert record["letter_id"] == f"dl-{run.id}"
    assert record["reason_code"] == "step_failed"
    assert record["stage"] == "exec"
    assert "Traceback" not in json.dumps(record)
    assert "hunter2" not in json.dumps(told)
    assert set().union(*engine_lines) <= {"time", "level", "logger", "message", "event", *RUN_FIELDS}


async def test_the_engine_hides_secrets_with_any_log_formatter(caplog: pytest.LogCaptureFixture) -> None:
    app, pay = bank()
    async with engine(app) as e:
        with faults(step="transfer", fail=[ConnectionError(SECRET)] * 3):
            await e.run(pay, 5)
    told = [record for record in caplog.records if record.name == "redrive.runs"]
    assert len(told) == 4
    assert "hunter2" not in str([(record.getMessage(), vars(record)) for record in told])


async def test_a_success_is_not_logged_and_log_lines_of_user_code_name_the_run() -> None:
    app, pay = bank()
    with lines() as told:
        async with engine(app) as e:
            run = await e.run(pay, 5, tenant="acme")
    assert [line["logger"] for line in told] == ["shop"]
    (own,) = told
    about = {"run_id": run.id, "correlation_id": run.id, "tenant": "acme", "workflow": "pay"}
    assert own.items() >= {**about, "step": "transfer", "attempt": 1, "message": "transferring"}.items()


async def test_a_stale_run_is_recovered_with_a_warning() -> None:
    """Story 4-0, AC7."""
    app, pay = bank()
    with lines() as told:
        async with engine(app) as e:
            with faults(step="transfer", fail=[Crash]):
                run = await e.run(pay, 5)
    assert run.status == "SUCCESS"
    (stale,) = [line for line in told if line["message"].startswith("recovering stale run")]
    assert stale["run_id"] == run.id
    assert re.search(r": its worker 1 \(.+\) is gone, and 'transfer' did not complete$", stale["message"])


async def test_a_run_that_fails_without_a_letter_is_logged_too() -> None:
    app = Redrive("sqlite:///:memory:")

    @app.workflow(dead_letter=False)
    async def fail() -> None:
        raise NonRetryable(SECRET)

    with lines() as told:
        async with engine(app) as e:
            run = await e.run(fail)
    (line,) = [line for line in told if line["logger"] == "redrive.runs"]
    assert (line["run_id"], line["decision"]) == (run.id, "FAILED")
    assert "hunter2" not in json.dumps(line)


async def test_a_run_past_its_deadline_is_logged() -> None:
    app = Redrive("sqlite:///:memory:")

    @app.workflow(timeout="1m")
    async def wait() -> None:
        await redrive.sleep("1h")

    @app.workflow(timeout="1m", dead_letter=False)
    async def wait_silently() -> None:
        await redrive.sleep("1h")

    with lines() as told:
        async with engine(app) as e:
            runs = [(await e.run(each)).id for each in (wait, wait_silently)]
    letter, silent = [line for line in told if line["logger"] == "redrive.runs"]
    assert (letter["run_id"], letter["level"], letter["code"]) == (runs[0], "ERROR", "timeout")
    assert (silent["run_id"], silent["level"], silent["decision"]) == (runs[1], "WARNING", "TIMED_OUT")


def test_console_lines_end_with_the_fields_that_the_text_does_not_mention() -> None:
    record = logging.LogRecord("redrive.runs", logging.INFO, "", 0, "run r1: %s", (SECRET,), None)
    record.redrive = {"run_id": "r1", "tenant": "acme", "step": None}
    text = ConsoleFormatter().format(record)
    assert text.endswith(" [tenant=acme]")
    assert "run r1: " in text
    assert "hunter2" not in text


FORGED = "x\n2026-01-01 00:00:00,000 INFO redrive.runs: forged\r\x1b[2K\u2028\u202e\x85\x9b2J\u2066"
"""A forged line, the erasure of a line, and characters that end a line or reverse its direction."""


def test_no_external_text_begins_a_line_of_the_console_log() -> None:
    for attribute in ("msg", "args", "field", "exception", "stack", "name"):
        record = logging.LogRecord("shop", logging.INFO, __file__, 1, "it said %s", ("x",), None)
        record.redrive = {"run_id": "r1", "step": FORGED if attribute == "field" else "charge"}
        if attribute == "msg":
            record.msg, record.args = FORGED, ()
        elif attribute == "args":
            record.args = (FORGED,)
        elif attribute == "exception":
            try:
                raise ValueError(FORGED)
            except ValueError:
                record.exc_info = sys.exc_info()
        elif attribute == "stack":
            record.stack_info = FORGED
        elif attribute == "name":
            record.name = FORGED
        first, *below = ConsoleFormatter().format(record).split("\n")
        whole = "\n".join([first, *below])
        assert "forged" in whole, attribute
        assert all(line.startswith("    ") for line in below), attribute
        assert bool(below) is (attribute in ("exception", "stack")), attribute
        assert not [one for one in whole if one != "\n" and not one.isprintable()], attribute


def test_a_huge_text_is_cut_before_it_is_redacted() -> None:
    """Log handlers often run on the event loop, where redacting a megabyte would block everything else."""
    seen: list[int] = []

    class Counting(Redactor):
        def text(self, text: str) -> str:
            seen.append(len(text))
            return text

    record = logging.LogRecord("shop", logging.INFO, __file__, 1, "a" * (1 << 20) + "end", (), None)
    record.redrive = {"step": "b" * (1 << 20)}
    for formatter in (JsonFormatter(Counting()), ConsoleFormatter(Counting())):
        assert "end" in formatter.format(record)
    assert max(seen) < 1 << 17


def test_a_json_line_has_the_message_without_its_values_as_event() -> None:
    record = logging.LogRecord("shop", logging.INFO, __file__, 1, "chore %s failed after %d s", ("purge", 3), None)
    line = json.loads(JsonFormatter().format(record))
    assert (line["event"], line["message"]) == ("chore %s failed after %d s", "chore purge failed after 3 s")
    assert json.loads(JsonFormatter().format(logging.LogRecord("", 20, "", 1, "ready", (), None)))["event"] == "ready"


REDRIVE = [sys.executable, "-m", "redrive"]
NOISY = """
import threading, warnings
from redrive import Redrive

app = Redrive()
print("printed at the import", end="")
warnings.warn("old")

@app.step
async def act() -> None:
    print('{"own": "object"}')
    print("two\\nlines")
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()

@app.workflow
async def job() -> None:
    await act()
"""


def test_with_json_logs_every_line_on_either_stream_is_a_json_object(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    (tmp_path / "broken.py").write_text("def")
    environment = {**os.environ, "REDRIVE_LOG": "json", "REDRIVE_URL": f"sqlite:///{tmp_path}/r.db"}
    for prepared in (["migrate"], ["runs", "start", "job", "--app", "noisy:app", "--input", "{}"]):
        subprocess.run([*REDRIVE, *prepared], env=environment, cwd=tmp_path, check=True, capture_output=True)
    for arguments, said in (
        (["worker", "noisy:app"], ["printed at the import", "UserWarning: old", "two", "ZeroDivisionError", "stopped"]),
        (["worker", "broken:app"], ["SyntaxError"]),
        (["worker", "noisy:other"], ["Error: "]),
        (["server", "--port", "x"], ["Error: Invalid value"]),
        (["server", "--port", "0"], ["Sign in once", "listening on"]),
    ):
        _check_json_lines(tmp_path, environment, arguments, said)


def _check_json_lines(folder: Path, environment: dict[str, str], arguments: list[str], said: list[str]) -> None:
    """Run a command until it has ended or said everything but its end; each line must be JSON."""
    files = [folder / "out", folder / "err"]
    with files[0].open("w") as out, files[1].open("w") as err:
        process = subprocess.Popen([*REDRIVE, *arguments], env=environment, cwd=folder, stdout=out, stderr=err)

    def lines() -> list[str]:
        return [line for file in files for line in file.read_text().splitlines()]

    until(lambda: process.poll() is not None or all(part in "".join(lines()) for part in said if part != "stopped"))
    process.terminate()
    process.wait(30)
    objects = [json.loads(line) for line in lines()]
    assert all(isinstance(each, dict) for each in objects), arguments
    messages = "\n".join(str(each.get("message")) + str(each.get("exception")) for each in objects)
    assert [part for part in said if part not in messages] == [], arguments


def until(true: Callable[[], bool]) -> None:
    """Wait for another process."""
    for _ in range(3000):
        if true():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen within a minute")
