/** The step worker: takes tasks of a queue, calls the functions of their steps, and reports how they ended. */

import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { Connection, isTemporary, pause } from "./client.js";
import { describeError, milliseconds, RedriveError, TaskCancelled } from "./errors.js";
import { Sealing } from "./sealing.js";

const LONGEST_POLL = 20_000;
const POLL_LIMIT = LONGEST_POLL + 15_000;
const BEAT_INTERVAL = 1000; // with tasks under way, so that they hear of a cancelled run soon
const MAX_TASKS = 256;

/** One attempt of a step. */
class Attempt {
  constructor(task) {
    this.task = task;
    this.controller = new AbortController();
    this.wanted = true; // false once the server would refuse the answer
    this.ended = false;
  }

  /** Tell the step to stop, and send no answer. */
  drop(why) {
    this.wanted = false;
    this.controller.abort(new TaskCancelled(why));
  }

  /** Call the function of the step; end after its time limit even if it ignores the signal. */
  async execute(handler, input, context) {
    const { timeout_ms: limit, heartbeat_timeout_ms: patience } = this.task;
    const { signal } = this.controller;
    signal.throwIfAborted();
    const expire = (what, ms) => this.controller.abort(new DOMException(`no ${what} within ${ms} ms`, "TimeoutError"));
    const timers = [limit > 0 && setTimeout(expire, Math.min(limit, 2 ** 31 - 1), "result", limit)];
    this.touch = () => {
      clearTimeout(timers[1]);
      if (patience && !this.ended) timers[1] = setTimeout(expire, patience, "heartbeat", patience);
    };
    this.touch();
    const aborted = new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    try {
      return await Promise.race([aborted, (async () => handler(input, context))()]);
    } finally {
      this.ended = true;
      timers.forEach(clearTimeout);
    }
  }
}

/** Requests about single tickets, sent together: what comes while one request is under way waits for the next. */
class Batches {
  #waiting = [];
  #busy = false;

  constructor(send) {
    this.send = send;
  }

  add(ticket, body = {}) {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ ticket, body, resolve, reject });
      if (!this.#busy) this.#drain();
    });
  }

  async #drain() {
    this.#busy = true;
    while (this.#waiting.length) {
      const items = this.#waiting.splice(0, MAX_TASKS);
      await this.send(items).then(
        (answers) => items.forEach((item, number) => item.resolve(answers[number])),
        (error) => items.forEach((item) => item.reject(error)),
      );
    }
    this.#busy = false;
  }
}

/** A worker of one queue. `run` returns when it was stopped and all its steps have ended. */
export class Worker {
  #connection;
  #handlers = new Map();
  #attempts = new Set();
  #stopping = new AbortController();
  #failed = new AbortController(); // the server refuses this worker: nothing can be reported any more
  #id = 0;
  #registering = null;
  #sealing;
  #freed = () => {};
  #begins = new Batches((items) => this.#sendAll("begin", { tickets: items.map(({ ticket }) => ticket) }));
  #answers = new Batches((items) => this.#sendAll("settle", { answers: items.map(({ ticket, body }) => ({ ticket, ...body })) }));

  constructor({ queue, name = `${hostname()}-${process.pid}`, concurrency = 10, lease = "30s", log = console, encryptionKeys, ...rest }) {
    if (!queue) throw new RedriveError("queue missing: pass { queue }, the name that the steps have in remote=");
    if (!Number.isInteger(concurrency) || concurrency < 1) {
      throw new RedriveError(`concurrency invalid: give a whole number above 0 instead of ${concurrency}`);
    }
    this.#connection = new Connection(rest);
    this.#sealing = Sealing.read(encryptionKeys);
    Object.assign(this, { queue, name, concurrency, log, lease: milliseconds(lease, "lease") });
  }

  /** Register the function of a step. It gets the input of the step and the context of the attempt. */
  step(name, handler) {
    if (typeof handler !== "function") throw new RedriveError(`step ${name} has no function: pass one as second argument`);
    this.#handlers.set(name, handler);
    return this;
  }

  /** Take no more tasks; `run` returns when the steps under way have ended. */
  stop() {
    this.#stopping.abort(new RedriveError("the worker is stopping"));
  }

  /** Work until `stop`, or SIGTERM or SIGINT unless `signals` is false. */
  async run({ signals = true } = {}) {
    if (!this.#handlers.size) throw new RedriveError("no steps: call step(name, function) before run()");
    const names = signals ? ["SIGTERM", "SIGINT"] : [];
    const stop = () => this.stop();
    names.forEach((name) => process.once(name, stop)); // a second signal ends the process
    let beats;
    try {
      await this.#register();
      beats = this.#sendBeats();
      await this.#takeTasks();
      while (this.#attempts.size && !this.#failed.signal.aborted) await this.#nextFree();
      this.#failed.signal.throwIfAborted();
      await this.#post("retire", {}).catch((error) => this.log.warn("cannot deregister; the lease will expire", error));
    } catch (error) {
      if (!this.#stopping.signal.aborted) this.#fail(error);
      this.#failed.signal.throwIfAborted();
    } finally {
      this.stop();
      beats?.();
      names.forEach((name) => process.off(name, stop));
    }
  }

  #post(path, body, options = {}) {
    const headers = { "Redrive-Worker": String(this.#id), "Redrive-Protocol": "1" };
    return this.#connection.send("POST", `worker/${path}`, { body, headers, ...options });
  }

  /** Repeat a request until the server answers it; other errors than those of the moment are thrown. */
  async #persist(path, body, options = { signal: this.#failed.signal }) {
    for (let failures = 0; ; failures++) {
      try {
        return await this.#post(path, body, options);
      } catch (error) {
        options.signal?.throwIfAborted();
        if (!isTemporary(error) && error.status !== 500) throw error;
        if (failures === 3) this.log.warn("server does not answer; the request is repeated", { path, error: error.message });
        await pause(failures, error, options.signal);
      }
    }
  }

  /** Register, once for all who ask meanwhile. Tasks of the former registration belong to others. */
  #register() {
    this.#registering ??= (async () => {
      for (const attempt of this.#attempts) attempt.drop("the lease of the worker has expired");
      const body = { name: this.name, queues: [this.queue], lease: Math.round(this.lease * 1000), previous: this.#id };
      const registered = await this.#persist("register", body, { signal: this.#stopping.signal });
      this.#id = registered.worker;
      this.log.info("worker registered", { worker: this.#id, queue: this.queue, steps: [...this.#handlers.keys()] });
    })().finally(() => (this.#registering = null));
    return this.#registering;
  }

  async #takeTasks() {
    const { signal } = this.#stopping;
    for (let failures = 0; !signal.aborted; ) {
      const free = Math.min(this.concurrency - this.#attempts.size, MAX_TASKS);
      if (free < 1) {
        await this.#nextFree();
        continue;
      }
      const wanted = { queue: this.queue, steps: [...this.#handlers.keys()], capacity: free, wait_ms: LONGEST_POLL };
      try {
        // Tasks are only reserved: those of an answer that is lost were never begun, and use up no attempt.
        const body = { ...wanted, begin: false, ...(this.#sealing && { keys: true }) };
        const { tasks } = await this.#post("steps/poll", body, { signal, limit: POLL_LIMIT });
        for (const task of tasks) if (!signal.aborted) this.#attempt(task);
        failures = 0;
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 404) await this.#register();
        else if (isTemporary(error) || error.status === 500) await pause(failures++, error, signal).catch(() => {});
        else this.#fail(error);
      }
    }
  }

  #nextFree() {
    return new Promise((resolve) => (this.#freed = resolve));
  }

  #fail(error) {
    this.#failed.abort(error);
    this.stop();
    for (const attempt of this.#attempts) attempt.drop(error.message);
    this.#freed();
  }

  async #attempt(task) {
    const attempt = new Attempt(task);
    this.#attempts.add(attempt);
    try {
      const path = `steps/${encodeURIComponent(task.ticket)}`;
      const { should_execute } = await this.#send(this.#begins, path, "begin", task.ticket);
      if (!attempt.wanted) throw attempt.controller.signal.reason;
      if (should_execute) await this.#report(attempt, path, await this.#call(attempt, path));
    } catch (error) {
      if (error.status === 401 || error.status === 403) this.#fail(error);
      const fields = { run_id: task.run_id, step: task.step, attempt: task.attempt, why: error.message };
      this.log.warn("step has no recorded result: the server has taken its task away", fields);
    } finally {
      this.#attempts.delete(attempt);
      this.#freed();
    }
  }

  async #sendAll(call, body) {
    return (await this.#persist(`steps/${call}`, body)).answers;
  }

  /** Send a request about a ticket with others; alone, if the server refuses them together. */
  async #send(batches, path, call, ticket, body) {
    try {
      const answer = await batches.add(ticket, body);
      if (answer.status !== "LOST") return answer;
    } catch (error) {
      if (![400, 404, 405, 413, 422].includes(error.status)) throw error;
    }
    return this.#persist(`${path}/${call}`, body);
  }

  /** Call the function of a step; return the path and the body of the answer. */
  async #call(attempt, path) {
    const { task, controller } = attempt;
    const context = {
      runId: task.run_id, workflow: task.workflow, step: task.step, attempt: task.attempt, tenant: task.tenant,
      idempotencyKey: task.idempotency_key, correlationId: task.correlation_id, traceparent: task.traceparent,
      signal: controller.signal, heartbeat: (details = null) => this.#heartbeat(attempt, path, details),
    };
    const sealing = this.#sealing;
    try {
      const input = Sealing.open(sealing, task.input, task.tenant);
      const output = (await attempt.execute(this.#handlers.get(task.step), input, context)) ?? null;
      JSON.stringify({ output }); // throws for values that JSON cannot hold
      return ["complete", { output: sealing ? sealing.seal(output, task.tenant) : output }];
    } catch (error) {
      const body = describeError(error);
      return ["fail", sealing ? sealing.sealError(body, task.tenant) : body, body.error.message];
    }
  }

  /** Send the answer until the server has recorded or refused it. */
  async #report(attempt, path, [call, body, message]) {
    if (!attempt.wanted) throw attempt.controller.signal.reason;
    const { ticket, run_id, step, attempt: number } = attempt.task;
    let reply;
    try {
      reply = await this.#send(this.#answers, path, call, ticket, body);
    } catch (error) {
      if (![400, 413, 422].includes(error.status)) throw error;
      const refused = { type: "AnswerRefused", message: error.message, category: "validation" };
      reply = await this.#persist(`${path}/fail`, { error: refused, non_retryable: true });
    }
    if (reply.status === "SUCCESS") return;
    const why = reply.problem ?? message;
    this.log.warn("step failed", { run_id, step, attempt: number, status: reply.status, next_in_ms: reply.next_in_ms, why });
  }

  async #heartbeat(attempt, path, details) {
    try {
      attempt.touch();
      const sent = this.#sealing && details !== null ? this.#sealing.seal(details, attempt.task.tenant) : details;
      const { cancelled } = await this.#post(`${path}/heartbeat`, { details: sent });
      if (cancelled && !attempt.ended) attempt.drop("the run was cancelled, or the task was taken away");
    } catch (error) {
      if (error.status === 404 && !attempt.ended) attempt.drop("the task was taken away");
      else this.log.warn("heartbeat failed", { run_id: attempt.task.run_id, error: error.message });
    }
  }

  /** Renew the lease regularly. Return a function that ends it. */
  #sendBeats() {
    const ending = new AbortController();
    const beat = async () => {
      const sent = [...this.#attempts].filter((each) => each.wanted && !each.ended);
      // A step with a time limit for heartbeats sends its own: those of the worker say nothing about it.
      const tickets = sent.filter((each) => !each.task.heartbeat_timeout_ms).map((each) => each.task.ticket);
      const reply = await this.#post("beat", { tickets: tickets.slice(0, 10_000) }, { limit: this.lease / 2 });
      if (!reply.alive) return this.#register();
      const cancelled = new Set(reply.cancelled);
      for (const each of sent) {
        if (cancelled.has(each.task.ticket) && !each.ended) each.drop("the run was cancelled, or the task was taken away");
      }
    };
    (async () => {
      for (let idle = 0; !ending.signal.aborted; ) {
        const interval = Math.min(BEAT_INTERVAL, this.lease / 6);
        await sleep(interval, undefined, { signal: ending.signal }).catch(() => {});
        idle += interval;
        if (ending.signal.aborted || (!this.#attempts.size && idle < this.lease / 6)) continue;
        idle = 0;
        await beat().catch((error) => {
          if (error.status === 404) return this.#register().catch(() => {});
          if (error.status === 401 || error.status === 403) return this.#fail(error);
          this.log.warn("heartbeat failed", { worker: this.#id, error: error.message });
        });
      }
    })();
    return () => ending.abort();
  }
}
