import assert from "node:assert/strict";
import { test } from "node:test";
import { describeError, milliseconds, readRetryAfter } from "../errors.js";
import { NonRetryable, Redrive, RetryAfter, Worker } from "../index.js";

test("errors are reported with type, message, stack, status and code", () => {
  class Declined extends Error {
    name = "Declined";
  }
  const error = Object.assign(new Declined("no money"), { status: 402, code: "ECARD", details: { cents: 5 } });
  const report = describeError(error);
  assert.deepEqual({ ...report.error, stack: "" }, {
    type: "Declined", message: "no money", stack: "", status: 402, code: "ECARD", category: undefined, details: { cents: 5 },
  });
  assert.match(report.error.stack, /errors\.test\.js/);
  assert.equal(report.non_retryable, false);
  const failedFetch = new TypeError("fetch failed", { cause: Object.assign(new Error("x"), { code: "ECONNREFUSED" }) });
  assert.equal(describeError(failedFetch).error.code, "ECONNREFUSED");
  const cyclic = {};
  cyclic.self = cyclic;
  for (const odd of [undefined, null, 5, "text", {}, Object.create(null), { details: cyclic, code: 20, status: "x" }]) {
    assert.equal(typeof JSON.stringify(describeError(odd)), "string");
  }
});

test("a step chooses when it is tried again", () => {
  assert.equal(describeError(new NonRetryable("never")).non_retryable, true);
  const wait = describeError(new RetryAfter("1.5s", "busy", { status: 429 }));
  assert.deepEqual([wait.retry_after_ms, wait.error.status], [1500, 429]);
  for (const headers of [new Headers({ "Retry-After": "3" }), { "retry-after": "3" }]) {
    const report = describeError(Object.assign(new Error("busy"), { response: { status: 429, headers } }));
    assert.deepEqual([report.retry_after_ms, report.error.status], [3000, 429]);
  }
  assert.equal(readRetryAfter("soon"), null);
  assert.ok(readRetryAfter(new Date(Date.now() + 60_000).toUTCString()) > 50_000);
  assert.throws(() => new RetryAfter("soon"), /delay is invalid/);
  assert.deepEqual([milliseconds(250, "x"), milliseconds("2m", "x")], [250, 120_000]);
});

test("bad settings are refused with what to do", () => {
  const token = "t";
  assert.throws(() => new Redrive({ url: "", token }), /url missing/);
  assert.throws(() => new Redrive({ url: "https://x.example", token: "" }), /token missing/);
  assert.throws(() => new Redrive({ url: "sqlite:///shop.db", token }), /not that of its database/);
  assert.throws(() => new Redrive({ url: "http://x.example", token }), /without TLS/);
  new Redrive({ url: "http://x.example", token, allowPlain: true });
  const worker = { url: "https://x.example", token };
  assert.throws(() => new Worker(worker), /queue missing/);
  assert.throws(() => new Worker({ ...worker, queue: "q", concurrency: 0 }), /concurrency invalid/);
  assert.throws(() => new Worker({ ...worker, queue: "q" }).step("s"), /has no function/);
  return assert.rejects(new Worker({ ...worker, queue: "q" }).run(), /no steps/);
});
