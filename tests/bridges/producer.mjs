// A producer for the tests: reads commands as lines of JSON, answers each with a line of JSON.
// usage: node producer.mjs FOLDER-OF-BULLMQ REDIS-URL
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [folder, url] = process.argv.slice(2);
const { Queue, QueueEvents } = createRequire(folder + "/")(folder);
const { hostname: host, port } = new URL(url);
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const queues = new Map(), events = new Map();
// The options of the queue story.
const defaults = { attempts: 3, backoff: { type: "exponential", delay: 5000 }, removeOnComplete: 100, removeOnFail: false };

function queue(name) {
  if (!queues.has(name)) queues.set(name, new Queue(name, { connection, defaultJobOptions: defaults }));
  return queues.get(name);
}

async function listen(name) {
  if (!events.has(name)) events.set(name, new QueueEvents(name, { connection }));
  await events.get(name).waitUntilReady();
  return events.get(name);
}

const commands = {
  add: async ({ name, job, data, options }) => (await queue(name).add(job, data, options)).id,
  addBulk: async ({ name, jobs }) => (await queue(name).addBulk(jobs)).map((job) => job.id),
  run: async ({ name, job, data, options, limit }) => {
    const heard = await listen(name);
    return (await queue(name).add(job, data, options)).waitUntilFinished(heard, limit);
  },
  retry: async ({ name, id }) => (await queue(name).getJob(id)).retry("failed"),
  remove: async ({ name, id }) => queue(name).remove(id),
  counts: async ({ name }) => queue(name).getJobCounts(),
  job: async ({ name, id }) => {
    const state = await (await queue(name).getJob(id))?.getState();
    const job = await queue(name).getJob(id); // read after the state: a job that has ended does not change
    if (!job || !state) return null;
    const { data, returnvalue, failedReason, attemptsMade, progress, stacktrace } = job;
    return { state, name: job.name, data, returnvalue, failedReason, attemptsMade, progress, stacktrace };
  },
  jobs: async ({ name, states }) => (await queue(name).getJobs(states)).map(({ id, name, data }) => ({ id, name, data })),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { number, command, ...given } = JSON.parse(line);
  commands[command](given).then(
    (answer) => console.log(JSON.stringify({ number, answer: answer ?? null })),
    (error) => console.log(JSON.stringify({ number, error: error.message })),
  );
}
process.exit(0);
