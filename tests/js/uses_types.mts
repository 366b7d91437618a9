// Compiled, never run: a use of everything that the package exports.
import {
  NonRetryable, Problem, Redrive, RedriveError, ResultTimeout, RetryAfter, RunFailed, TaskCancelled, Unreachable, Worker,
} from "../../js/index.js";

interface Order {
  order: string;
  cents: number;
}

const redrive = new Redrive({ url: "https://redrive.example.com", token: "t", patience: "1m" });
const run = await redrive.start<string>("fulfil", { order: "A-1" }, { idempotencyKey: "A-1", delay: "1s", correlationId: "c" });
const printed: string = await run.result({ timeout: "1m", signal: AbortSignal.timeout(5) });
await redrive.run<number>(run.id).cancel("changed my mind");
const status: string = (await run.describe()).status;
for await (const letter of redrive.dlq.list({ status: ["OPEN"], limit: 10 })) {
  await redrive.dlq.replay(letter.id, { patch: { cents: 50 }, mode: "FROM_FAILED" });
  await redrive.dlq.resolve((await redrive.dlq.get(letter.id)).id, { reason: "done" });
}

const worker = new Worker({ queue: "node", concurrency: 5, lease: 30_000, log: console });
worker
  .step<Order, string>("render", async ({ order, cents }, context) => {
    if (cents < 0) throw new NonRetryable("no", { cause: status });
    if (context.attempt === 1) throw new RetryAfter("30s", "busy", { status: 429 });
    await context.heartbeat({ pages: 1 });
    context.signal.throwIfAborted();
    return `${order} ${printed} ${context.idempotencyKey}`;
  })
  .step("other", (input) => input.anything);
await worker.run({ signals: false });

export function describe(error: unknown): string {
  if (error instanceof Problem) return `${error.status} ${error.code} ${error.retryAfter ?? 0}`;
  if (error instanceof RunFailed) return `${error.runId} ${error.step ?? ""}`;
  const known: RedriveError[] = [new ResultTimeout(), new Unreachable(), new TaskCancelled()];
  // @ts-expect-error: a queue is needed
  new Worker({});
  // @ts-expect-error: a run has no such option
  void redrive.start("fulfil", {}, { prioritty: 1 });
  return known.join();
}
