// Executes the step `render` of a Python workflow: @app.step(remote="node") async def render(order: str, cents: int) -> str
import { NonRetryable, Worker } from "redrive";

await new Worker({ queue: "node", concurrency: 10 }) // REDRIVE_URL and REDRIVE_TOKEN
  .step("render", async ({ order, cents }, { attempt, idempotencyKey, signal }) => {
    if (cents <= 0) throw new NonRetryable(`nothing to print for ${order}`);
    console.log(`printing ${order}, attempt ${attempt}`);
    signal.throwIfAborted(); // pass it on to fetch, and send the idempotency key to other services
    return `${order}.pdf`;
  })
  .run(); // until SIGTERM: begins nothing new, and waits for steps under way
