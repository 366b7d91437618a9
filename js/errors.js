/** Errors of the client, errors that a step may throw, and the report of an error to the server. */

export class RedriveError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The server cannot be reached, or the answer is not one of a Redrive server. */
export class Unreachable extends RedriveError {}

/** An answer of the server with problem details. `code` is stable; `errors` lists the faults by path. */
export class Problem extends RedriveError {
  constructor(status, details = {}, retryAfter = null) {
    super(details.detail ?? details.title ?? `the server answered with status ${status}`);
    Object.assign(this, { status, code: details.code ?? "http", details, errors: details.errors ?? [], retryAfter });
  }
}

/** A run that ended without a result. `reason` has the code, the step and the failure, if there is one. */
export class RunFailed extends RedriveError {
  constructor(runId, status, reason) {
    const failure = reason?.failure;
    super(`run ${runId} ended with status ${status}${failure ? `: ${failure.error_type}: ${failure.message}` : ""}`);
    Object.assign(this, { runId, status, reason, code: reason?.code, step: reason?.step });
  }
}

/** A run that has not ended within the time limit of the caller. The run continues. */
export class ResultTimeout extends RedriveError {}

/** The reason of the signal of a step whose answer is not wanted any more. */
export class TaskCancelled extends RedriveError {}

/** Thrown by a step: the step fails for good, whatever its retry policy says. */
export class NonRetryable extends RedriveError {}

/** Thrown by a step: the next attempt begins after `delay` (milliseconds or a text such as "30s"), not before. */
export class RetryAfter extends RedriveError {
  constructor(delay, message = "the dependency asked for a delay", { status, code, ...options } = {}) {
    super(message, options);
    Object.assign(this, { delay: milliseconds(delay, "delay"), status, code });
  }
}

const UNITS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Return a duration in milliseconds: of a number, or of a text such as "250ms", "1.5s" or "1m". */
export function milliseconds(duration, name) {
  const found = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/.exec(duration);
  const value = found ? Number(found[1]) * UNITS[found[2]] : duration;
  if (typeof value !== "number" || !(value >= 0 && Number.isFinite(value))) {
    throw new TypeError(`${name} is invalid: give milliseconds, or a text such as "30s", instead of ${String(duration)}`);
  }
  return value;
}

const text = (value) => (typeof value === "string" ? value : undefined);

/** Return what `fail` sends about anything that a step threw. */
export function describeError(thrown) {
  const error = Object(thrown) === thrown ? thrown : { name: "Error", message: String(thrown) };
  const cause = Object(error.cause);
  const status = error.status ?? error.statusCode ?? error.response?.status ?? cause.status;
  return {
    error: {
      type: text(error.name) ?? error.constructor?.name ?? "Error",
      message: text(error.message) ?? "",
      stack: text(error.stack) ?? "",
      status: Number.isInteger(status) ? status : undefined,
      code: text(error.code) ?? text(cause.code),
      category: text(error.category),
      details: isPlain(error.details) ? error.details : undefined,
    },
    non_retryable: error instanceof NonRetryable,
    retry_after_ms: readDelay(error),
  };
}

function isPlain(details) {
  try {
    return JSON.stringify(details)?.startsWith("{") ?? false;
  } catch {
    return false;
  }
}

function readDelay(error) {
  if (error instanceof RetryAfter) return Math.ceil(error.delay);
  const headers = error.response?.headers;
  const given = typeof headers?.get === "function" ? headers.get("retry-after") : headers?.["retry-after"];
  return readRetryAfter(given) ?? undefined;
}

/** Return the milliseconds that a Retry-After header names in seconds or as a date; null without one. */
export function readRetryAfter(header) {
  if (!header) return null;
  const delay = /^\s*\d+\s*$/.test(header) ? Number(header) * 1000 : Date.parse(header) - Date.now();
  return Number.isFinite(delay) ? Math.max(0, delay) : null;
}
