// Needs REDRIVE_URL, REDRIVE_TOKEN, and a worker with the workflow js-charge.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { test } from "node:test";
import { Problem, Redrive, ResultTimeout, RunFailed, Unreachable } from "../index.js";

const redrive = new Redrive();

test("a run is started once for its key, and awaited", async () => {
  const idempotencyKey = randomUUID();
  const run = await redrive.start("js-charge", { cents: 5 }, { idempotencyKey, correlationId: "c-1" });
  const again = await redrive.start("js-charge", { cents: 5 }, { idempotencyKey, correlationId: "c-1" });
  assert.deepEqual([run.new, again.new, again.id], [true, false, run.id]);
  assert.equal(await run.result({ timeout: "30s" }), "charged 5");
  const record = await redrive.run(run.id).describe();
  assert.deepEqual([record.status, record.correlation_id], ["SUCCESS", "c-1"]);
});

test("a failed run is a dead letter, which is replayed with a patch, or resolved", async () => {
  const failing = await Promise.all([0, -1].map((cents) => redrive.start("js-charge", { cents })));
  for (const run of failing) {
    await assert.rejects(run.result({ timeout: "30s" }), (error) => {
      assert.ok(error instanceof RunFailed);
      assert.deepEqual([error.runId, error.status], [run.id, "DLQ_PENDING"]);
      assert.match(error.message, /cents cannot be charged/);
      assert.deepEqual([error.code, error.step], ["non_retryable", "charge"]);
      return true;
    });
  }
  const letters = [];
  for await (const letter of redrive.dlq.list({ status: "OPEN", workflow: "js-charge", limit: 1 })) letters.push(letter);
  const [first, second] = failing.map((run) => letters.find((letter) => letter.run_id === run.id).id);
  await redrive.dlq.replay(first, { patch: { cents: 50 }, reason: "a typing error" });
  assert.equal(await failing[0].result({ timeout: "30s" }), "charged 50");
  assert.equal((await redrive.dlq.resolve(second, { reason: "paid in cash" })).status, "RESOLVED");
  assert.equal((await redrive.dlq.get(second)).status, "RESOLVED");
});

test("a run is cancelled; one that has not ended is no result", async () => {
  const run = await redrive.start("js-charge", { cents: 5 }, { delay: "10m" });
  await assert.rejects(run.result({ timeout: "50ms" }), ResultTimeout);
  await assert.rejects(run.result({ signal: AbortSignal.timeout(200) }), { name: "TimeoutError" });
  assert.equal((await run.cancel("changed my mind")).status, "CANCELLED");
  await assert.rejects(run.result(), (error) => error.status === "CANCELLED");
});

test("refused requests are problems with a code", async () => {
  await assert.rejects(redrive.start("no-such-workflow"), (error) => {
    assert.ok(error instanceof Problem);
    assert.deepEqual([error.status, error.code], [422, "unknown_workflow"]);
    return true;
  });
  await assert.rejects(redrive.start("js-charge", { cents: "five" }), (error) => error.status === 422 && /cents/.test(error.message));
  await assert.rejects(redrive.run("no/such run").describe(), { status: 404 });
  await assert.rejects(new Redrive({ token: "wrong" }).dlq.get("x"), { status: 401, code: "not_signed_in" });
});

test("requests that fail for a moment are repeated with their key", async () => {
  const seen = [];
  const server = createServer((request, response) => {
    seen.push(request.headers["idempotency-key"]);
    if (seen.length === 1) return request.socket.destroy();
    if (seen.length === 2) return response.writeHead(503, { "Retry-After": "0" }).end("<html>");
    response.writeHead(seen.length < 5 ? 201 : 200).end(seen.length < 5 ? '{"id":"r","new":true}' : "<html>");
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${server.address().port}`;
  assert.equal((await new Redrive({ url }).start("w")).id, "r");
  assert.equal(seen.length, 3);
  assert.ok(seen[0] && new Set(seen).size === 1);
  await new Redrive({ url }).start("w");
  assert.notEqual(seen[3], seen[0]);
  await assert.rejects(new Redrive({ url, patience: 1 }).start("w"), /answer invalid/);
  await new Promise((resolve) => server.close(resolve));
  await assert.rejects(new Redrive({ url, patience: 1 }).start("w"), Unreachable);
});
