// A worker whose step writes a line when it begins, and ends when a line arrives.
import { createInterface } from "node:readline";
import { Worker } from "../../js/index.js";

const waiting = [];
const lines = createInterface({ input: process.stdin }).on("line", () => waiting.splice(0).forEach((end) => end()));
const options = { token: process.env.REDRIVE_WORKER_TOKEN, queue: "js-held", concurrency: 1, lease: "2s" };
await new Worker({ ...options, log: { info() {}, warn() {} } })
  .step("js-held", async ({ number }, { attempt, idempotencyKey }) => {
    const ended = new Promise((resolve) => waiting.push(resolve));
    console.log(JSON.stringify({ number, attempt, idempotencyKey }));
    await ended;
    return { number };
  })
  .run();
lines.close();
