// Starts a run, waits for its result, and lists open dead letters. Usage: node client.js ORDER CENTS
import { Redrive, RunFailed } from "redrive";

const [order = "A-1", cents = "1000"] = process.argv.slice(2);
const redrive = new Redrive(); // REDRIVE_URL and REDRIVE_TOKEN
const run = await redrive.start("fulfil", { order, cents: Number(cents) }, { idempotencyKey: order });
try {
  console.log("result:", await run.result({ timeout: "1m" }));
} catch (error) {
  if (!(error instanceof RunFailed)) throw error;
  console.error(error.message);
  for await (const letter of redrive.dlq.list({ status: "OPEN" })) console.error("dead letter:", letter.id);
  process.exitCode = 1;
}
