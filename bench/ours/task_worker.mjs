// The step worker in Node of the workload `tasks`. usage: node task_worker.mjs URL TOKEN
import { Worker } from "../../js/index.js";

const [url, token] = process.argv.slice(2);
const log = { info() {}, warn: console.error };
await new Worker({ url, token, queue: "bench", concurrency: 1000, log }).step("work", ({ number }) => number).run();
