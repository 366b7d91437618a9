/** HTTP requests to a Redrive server, and the client: starts runs, returns results, decides on dead letters. */

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { milliseconds, Problem, readRetryAfter, RedriveError, ResultTimeout, RunFailed, Unreachable } from "./errors.js";

const LOOPBACK = /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/;
const REPEATED = new Set([408, 429, 502, 503, 504]);
const REQUEST_LIMIT = 30_000;
const LONGEST_WAIT = 20_000;
const UNFINISHED = new Set(["PENDING", "RUNNING", "SLEEPING", "COMPENSATING"]);

/** Return true for an error after which the same request may succeed. */
export function isTemporary(error) {
  return error instanceof Unreachable || REPEATED.has(error?.status) || error?.code === "request_in_progress";
}

/** Wait longer after each failure, or as long as the server asked. Rejects when the signal is aborted. */
export async function pause(failures, error, signal) {
  const backoff = Math.min(10_000, 100 * 2 ** Math.min(failures, 10)) * (0.5 + Math.random() / 2);
  await sleep(error.retryAfter ?? backoff, undefined, { signal });
}

/** The address and the token of a server. */
export class Connection {
  #token;

  constructor({ url, token, allowPlain = false, patience = "30s" } = {}) {
    url ??= process.env.REDRIVE_URL;
    token ??= process.env.REDRIVE_TOKEN;
    if (!url) throw new RedriveError("url missing: pass { url } or set REDRIVE_URL to the address of a Redrive server");
    if (!token) throw new RedriveError("token missing: pass { token } or set REDRIVE_TOKEN");
    const address = URL.canParse(url) ? new URL(url) : { protocol: "" };
    if (!["http:", "https:"].includes(address.protocol)) {
      throw new RedriveError("url invalid: give the https:// address of a Redrive server, not that of its database");
    }
    if (address.protocol === "http:" && !allowPlain && !LOOPBACK.test(address.hostname)) {
      throw new RedriveError("url without TLS: use https://, or pass { allowPlain: true } to send the token in clear");
    }
    this.base = `${url.replace(/\/+$/, "")}/api/v1/`;
    this.patience = milliseconds(patience, "patience");
    this.#token = token;
  }

  /** Send a request once and return the decoded answer. */
  async send(method, path, { body, headers, signal, limit = REQUEST_LIMIT } = {}) {
    const signals = [AbortSignal.timeout(limit), ...(signal ? [signal] : [])];
    const sent = { Authorization: `Bearer ${this.#token}`, "Content-Type": "application/json", ...headers };
    const request = { method, headers: sent, body: JSON.stringify(body), redirect: "manual" };
    let response, content;
    try {
      response = await fetch(this.base + path, { ...request, signal: AbortSignal.any(signals) });
      content = await response.text();
    } catch (cause) {
      signal?.throwIfAborted();
      const why = cause.cause?.code ?? cause.cause?.message ?? cause.message;
      throw new Unreachable(`server unreachable (${why}): check the URL and the network`, { cause });
    }
    const answer = parse(content);
    if (!response.ok) throw new Problem(response.status, answer, readRetryAfter(response.headers.get("retry-after")));
    if (answer === undefined) throw new Unreachable("answer invalid: check that the URL is that of a Redrive server");
    return answer;
  }

  get(path, options) {
    return this.#repeat("GET", path, options);
  }

  post(path, { idempotencyKey = randomUUID(), signal, ...body } = {}) {
    return this.#repeat("POST", path, { headers: { "Idempotency-Key": idempotencyKey }, signal, body: toFields(body) });
  }

  async #repeat(method, path, options = {}) {
    const end = performance.now() + this.patience;
    for (let failures = 0; ; failures++) {
      try {
        return await this.send(method, path, options);
      } catch (error) {
        if (!isTemporary(error) || performance.now() + (error.retryAfter ?? 0) >= end) throw error;
        await pause(failures, error, options.signal);
      }
    }
  }
}

function parse(content) {
  try {
    return JSON.parse(content);
  } catch {
    return undefined;
  }
}

/** Return the options of a call as the API names them: `fromStepIndex` becomes `from_step_index`. */
function toFields(options) {
  const rename = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  return Object.fromEntries(Object.entries(options).map(([name, value]) => [rename(name), value]));
}

/** A client of a Redrive server. Requests that fail for a moment are repeated; each POST carries an idempotency key. */
export class Redrive {
  #api;

  constructor(options) {
    this.#api = new Connection(options);
    this.dlq = new DeadLetters(this.#api);
  }

  /** Start a run and return its handle. The same idempotency key is the same run. */
  async start(workflow, input = {}, options = {}) {
    const started = await this.#api.post("runs", { ...options, workflow, input });
    return new Run(this.#api, started.id, started.new);
  }

  /** Return the handle of a run that exists. */
  run(id) {
    return new Run(this.#api, id, false);
  }
}

/** A run. `new` is false if its idempotency key had started it before. */
class Run {
  #api;
  #path;

  constructor(api, id, isNew) {
    Object.assign(this, { id, new: isNew });
    this.#api = api;
    this.#path = `runs/${encodeURIComponent(id)}`;
  }

  /** Wait for the end of the run and return its result; throw RunFailed if it has none. */
  async result({ timeout, signal } = {}) {
    const end = timeout === undefined ? Infinity : performance.now() + milliseconds(timeout, "timeout");
    for (;;) {
      const wait = Math.max(0, Math.min(LONGEST_WAIT, Math.ceil(end - performance.now())));
      const options = { signal, limit: wait + REQUEST_LIMIT };
      const { status, output, failure } = await this.#api.get(`${this.#path}/result?wait=${wait}ms`, options);
      if (status === "SUCCESS") return JSON.parse(output ?? "null");
      if (!UNFINISHED.has(status)) throw new RunFailed(this.id, status, JSON.parse(failure ?? "null"));
      if (performance.now() >= end) throw new ResultTimeout(`run ${this.id} has not ended: its status is ${status}`);
    }
  }

  /** Cancel the run for good. */
  cancel(reason, options) {
    return this.#api.post(`${this.#path}/cancel`, { ...options, reason });
  }

  /** Return the record of the run with its steps and attempts. */
  describe(options) {
    return this.#api.get(this.#path, options);
  }
}

/** The dead letters of the tenant. */
class DeadLetters {
  #api;

  constructor(api) {
    this.#api = api;
  }

  /** Yield dead letters, newest first. The filter has the fields of the API, such as `status` and `workflow`. */
  async *list({ signal, ...filter } = {}) {
    for (let cursor; cursor !== null; ) {
      const query = new URLSearchParams();
      for (const [name, value] of Object.entries({ ...toFields(filter), cursor })) {
        for (const each of [value].flat()) if (each !== undefined) query.append(name, each);
      }
      const page = await this.#api.get(`workflow-dlq?${query}`, { signal });
      yield* page.items;
      cursor = page.next ?? null;
    }
  }

  /** Return one dead letter with its steps, attempts and history. */
  get(id, options) {
    return this.#api.get(`workflow-dlq/${encodeURIComponent(id)}`, options);
  }

  /** Run again, from the failed step unless `mode` says otherwise. */
  replay(id, options) {
    return this.#api.post(`workflow-dlq/${encodeURIComponent(id)}/replay`, options);
  }

  /** Close a letter whose cause was handled elsewhere. */
  resolve(id, options) {
    return this.#api.post(`workflow-dlq/${encodeURIComponent(id)}/resolve`, options);
  }
}
