// The steps that `redrive worker-check` asks for.
import { setTimeout as sleep } from "node:timers/promises";
import { Worker } from "../../js/index.js";

await new Worker({ queue: "check", log: { info() {}, warn() {} } })
  .step("echo", ({ value }) => value)
  .step("fail", () => {
    throw new RangeError("out of paper");
  })
  .step("slow", ({ seconds }, { signal }) => sleep(seconds * 1000, "done", { signal }))
  .run();
