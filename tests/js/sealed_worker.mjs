// A step worker with an encryption key. Its step greets, and fails for the name "nobody".
import { NonRetryable, Worker } from "../../js/index.js";

const worker = new Worker({ token: process.env.REDRIVE_WORKER_TOKEN, queue: "js-sealed", log: { info() {}, warn() {} } });
worker.step("js-sealed", async ({ name, number }, context) => {
  await context.heartbeat({ name });
  if (number) throw Object.assign(new NonRetryable(`account of ${name} number ${number} is closed`), { details: { name } });
  return { greeting: `dzień dobry ${name}` };
});
await worker.run();
