export { Redrive } from "./client.js";
export {
  NonRetryable, Problem, RedriveError, ResultTimeout, RetryAfter, RunFailed, TaskCancelled, Unreachable,
} from "./errors.js";
export { Worker } from "./worker.js";
