// An ordinary processor of BullMQ. It writes a line for each job it begins; a job that holds ends when a line arrives.
// usage: node processor.mjs FOLDER-OF-BULLMQ REDIS-URL QUEUE
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [folder, url, queue] = process.argv.slice(2);
const { Worker, UnrecoverableError } = createRequire(folder + "/")(folder);
const { hostname: host, port } = new URL(url);
const waiting = [];
createInterface({ input: process.stdin })
  .on("line", () => waiting.splice(0).forEach((end) => end()))
  .on("close", () => process.exit(0));

const kinds = {
  echo: ({ data }) => ({ to: data.to }),
  number: () => 7,
  busy({ data }) {
    if (data.redrive.attempt === 1) throw new Error("the mail server is busy");
    return { to: data.to };
  },
  never() {
    throw new UnrecoverableError("no such address");
  },
  async hold(job) {
    await job.updateProgress({ sent: 1 });
    await new Promise((resolve) => waiting.push(resolve));
    return { to: job.data.to };
  },
};

const connection = { host, port: Number(port), maxRetriesPerRequest: null };
new Worker(queue, async (job) => {
  const { id, name, data, opts } = job;
  console.log(JSON.stringify({ id, name, data, attempts: opts.attempts, delay: opts.delay ?? 0 }));
  return kinds[data.kind](job);
}, { connection, concurrency: 10 }).on("error", () => {});
