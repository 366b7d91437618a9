// The worker against recorded answers of version 1 of the protocol. They are the files that the server's tests read.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { test } from "node:test";
import { Worker } from "../index.js";

const folder = new URL("../../tests/server/wire_v1/", import.meta.url);
const golden = (name) => JSON.parse(readFileSync(new URL(`${name}.json`, folder), "utf8"));
const EXCHANGES = {
  register: ["registration", "registered"],
  "steps/poll": ["step_poll", "step_tasks"],
  "steps/begin": ["steps_begin", "steps_begun"],
  "steps/settle": ["step_settle", "step_settled"],
  beat: ["beat", "beaten"],
  retire: ["retire", "done"],
};

test("requests have the fields of the recorded ones, and recorded answers are understood", async () => {
  const asked = {};
  const server = createServer(async (request, response) => {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const call = request.url.replace("/api/v1/worker/", "");
    const again = call === "steps/poll" && asked[call];
    if (again) return; // a long poll that is never answered
    asked[call] = JSON.parse(Buffer.concat(chunks).toString());
    assert.equal(request.headers["redrive-protocol"], "1");
    assert.equal(request.headers["redrive-worker"], call === "register" ? "0" : "9");
    response.writeHead(200).end(JSON.stringify(golden(EXCHANGES[call][1])));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const options = { url: `http://127.0.0.1:${server.address().port}`, token: "t", queue: "node", concurrency: 5 };
  const worker = new Worker({ ...options, log: { info() {}, warn() {} } });
  let given;
  worker.step("render", (input, context) => {
    given = [input, context.attempt, context.idempotencyKey, context.tenant];
    worker.stop();
    return 1;
  });
  await worker.run({ signals: false });
  server.closeAllConnections();
  server.close();
  const [task] = golden("step_tasks").tasks;
  assert.deepEqual(given, [task.input, task.attempt, task.idempotency_key, task.tenant]);
  assert.deepEqual(asked["steps/begin"], { tickets: [task.ticket] });
  assert.deepEqual(asked["steps/settle"], { answers: [golden("step_settle").answers[0]] });
  assert.deepEqual(asked["steps/poll"], golden("step_poll"));
  assert.deepEqual(asked.retire, golden("retire"));
  const known = new Set(Object.keys(golden("registration")));
  assert.deepEqual(Object.keys(asked.register).filter((field) => !known.has(field)), []);
});
