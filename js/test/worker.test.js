// Needs REDRIVE_URL, REDRIVE_TOKEN, REDRIVE_WORKER_TOKEN, and a worker with the workflow js-call, whose steps are those below.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { NonRetryable, Redrive, RetryAfter, TaskCancelled, Worker } from "../index.js";

const redrive = new Redrive();
const options = { token: process.env.REDRIVE_WORKER_TOKEN, queue: "js", concurrency: 8, log: { info() {}, warn() {} } };
const stopped = {};
let open = 0, most = 0, asked = 0, dropped = 0, gate;

const kinds = {
  echo: (value, context) => ({ value, attempt: context.attempt, tenant: context.tenant, key: context.idempotencyKey }),
  nothing: () => undefined,
  busy(value, { attempt }) {
    if (attempt === 1) throw new RetryAfter("1s", "too many", { status: 429 });
    return attempt;
  },
  never() {
    throw new NonRetryable("nothing to print");
  },
  broken() {
    throw Object.assign(new RangeError("out of paper"), { code: "EPAPER" });
  },
  big: () => ({ number: 1n }),
  huge: () => "x".repeat(17_000_000),
  async together() {
    most = Math.max(most, ++open);
    if (open === 8) gate.resolve();
    await gate.promise;
    open--;
    return "done";
  },
  async waits(value, { signal, runId }) {
    gate.resolve(runId);
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
    stopped[runId] = signal.reason;
    signal.throwIfAborted();
  },
};

function makeGate() {
  gate = {};
  gate.promise = new Promise((resolve) => (gate.resolve = resolve));
}

/** A proxy that forwards requests and drops every second answer about steps, as a bad network would. */
const proxy = createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const { host, connection, "content-length": length, ...headers } = request.headers;
  const gone = new AbortController();
  response.on("close", () => gone.abort());
  const sent = { method: request.method, headers, body: chunks.length ? Buffer.concat(chunks) : undefined };
  try {
    const answer = await fetch(process.env.REDRIVE_URL + request.url, { ...sent, signal: gone.signal });
    const content = await answer.text();
    if (/\/(begin|settle|complete|fail)$/.test(request.url) && ++asked % 2) {
      dropped++;
      return request.socket.destroy();
    }
    response.writeHead(answer.status, { "Content-Type": "application/json" }).end(content);
  } catch {
    request.socket.destroy();
  }
});

let worker, working;
before(async () => {
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  worker = new Worker({ ...options, url: `http://127.0.0.1:${proxy.address().port}` })
    .step("js-do", ({ kind, value }, context) => kinds[kind](value, context))
    .step("js-limited", (_, context) => kinds.waits(null, context))
    .step("js-watched", async (_, { heartbeat, signal, runId }) => {
      gate.resolve(runId);
      for (let beats = 1; !signal.aborted; beats++) {
        await heartbeat({ beats });
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
      stopped[runId] = signal.reason;
    });
  working = worker.run();
});
after(async () => {
  worker.stop();
  await working;
  proxy.closeAllConnections();
  proxy.close();
});

const start = (kind, value = null) => redrive.start("js-call", { kind, value });
const result = async (kind, value) => (await start(kind, value)).result({ timeout: "60s" });
async function failure(kind) {
  const run = await start(kind);
  await assert.rejects(run.result({ timeout: "60s" }), { status: "DLQ_PENDING" });
  const record = await run.describe();
  return { record, letter: await redrive.dlq.get(record.letter_id), step: record.steps[0] };
}
async function until(check, what) {
  for (const end = Date.now() + 60_000; !check(); await new Promise((resolve) => setTimeout(resolve, 20))) {
    assert.ok(Date.now() < end, `never happened: ${what}`);
  }
}

test("steps get their input and context, and return results, although answers are lost on the way", async () => {
  const found = await result("echo", { cents: [1, "ż"] });
  assert.deepEqual([found.value, found.attempt, found.tenant], [{ cents: [1, "ż"] }, 1, "acme"]);
  assert.ok(found.key);
  assert.equal(await result("nothing"), null);
  assert.ok(dropped >= 4);
});

test("as many steps run at once as the worker may have", async () => {
  makeGate();
  const runs = await Promise.all(Array.from({ length: 12 }, () => start("together")));
  assert.deepEqual(new Set(await Promise.all(runs.map((run) => run.result({ timeout: "60s" })))), new Set(["done"]));
  assert.equal(most, 8);
});

test("429 with a delay is a rate limit, and the next attempt is not before", async () => {
  const run = await start("busy");
  assert.equal(await run.result({ timeout: "60s" }), 2);
  const [attempt] = (await run.describe()).steps[0].attempts;
  assert.equal(attempt.category, "rate_limit");
  assert.ok(Date.parse(attempt.next_at) - Date.parse(attempt.ended_at) >= 1000, JSON.stringify(attempt));
});

test("NonRetryable is a dead letter at once; other errors follow the policy", async () => {
  const never = await failure("never");
  assert.deepEqual([never.letter.code, never.step.attempts.length], ["non_retryable", 1]);
  const broken = await failure("broken");
  assert.equal(broken.step.attempts.length, 4);
  assert.match(JSON.stringify(broken.letter), /RangeError.*out of paper/);
  assert.match(JSON.stringify(broken.letter), /EPAPER/);
  assert.match(JSON.stringify(broken.letter), /worker\.test\.js/);
});

test("results that cannot be sent are failures of their step", async () => {
  assert.match(JSON.stringify((await failure("big")).letter), /BigInt/);
  const huge = await failure("huge");
  assert.match(JSON.stringify(huge.letter), /too large|larger|bytes/);
  assert.equal(huge.step.attempts.length, 1);
});

test("a cancelled run aborts the signal of its step", async () => {
  for (const kind of ["waits", "watched"]) {
    makeGate();
    const run = await start(kind);
    assert.equal(await gate.promise, run.id);
    await run.cancel();
    await until(() => stopped[run.id], "the signal is aborted");
    assert.ok(stopped[run.id] instanceof TaskCancelled);
  }
});

test("a step that passes its time limit is aborted, and times out", async () => {
  makeGate();
  const { letter, record } = await failure("limited");
  assert.equal(stopped[record.id].name, "TimeoutError");
  assert.match(JSON.stringify(letter), /timeout/);
});

test("a worker with a wrong token, or for another protocol, ends with the reason", async () => {
  const wrong = new Worker({ ...options, token: "wrong" }).step("js-do", () => null);
  await assert.rejects(wrong.run({ signals: false }), { status: 401 });
  const notAWorker = new Worker({ ...options, token: process.env.REDRIVE_TOKEN, queue: "q" }).step("s", () => null);
  notAWorker.stop();
  await notAWorker.run({ signals: false });
});
