/** Milliseconds, or a text such as "250ms", "30s", "1.5m" or "2h". */
export type Duration = number | string;

export interface ConnectionOptions {
  /** The https:// address of the server. Default: the variable REDRIVE_URL. */
  url?: string;
  /** The token. Default: the variable REDRIVE_TOKEN. */
  token?: string;
  /** Allow http:// to other hosts than this one. */
  allowPlain?: boolean;
}

export interface ClientOptions extends ConnectionOptions {
  /** How long a request is repeated while the server does not answer. Default: "30s". */
  patience?: Duration;
}

export interface CallOptions {
  signal?: AbortSignal;
}

export interface PostOptions extends CallOptions {
  /** The same key is the same request. Default: a random one. */
  idempotencyKey?: string;
}

/** Fields of an answer, with the names of the HTTP API. */
export interface Fields {
  [name: string]: unknown;
}

export interface StartOptions extends PostOptions {
  delay?: string;
  deadline?: string;
  timeout?: string;
  stepTimeout?: string;
  heartbeatTimeout?: string;
  priority?: number;
  queue?: string;
  correlationId?: string;
  retry?: Fields;
  onFailure?: string;
  failureQueue?: string;
}

export type RunStatus =
  | "PENDING" | "RUNNING" | "SLEEPING" | "COMPENSATING" | "SUCCESS" | "PARTIAL"
  | "FAILED" | "DLQ_PENDING" | "TIMED_OUT" | "CANCELLED" | "COMPENSATED";

export interface RunRecord extends Fields {
  id: string;
  status: RunStatus;
}

export interface DeadLetter extends Fields {
  id: string;
  run_id: string;
  status: string;
}

export interface Run<Output = unknown> {
  readonly id: string;
  /** False if the idempotency key had started the run before. */
  readonly new: boolean;
  result(options?: CallOptions & { timeout?: Duration }): Promise<Output>;
  cancel(reason?: string, options?: PostOptions): Promise<RunRecord>;
  describe(options?: CallOptions): Promise<RunRecord>;
}

/** The filter of the API; `limit` is the size of a page. */
export interface LetterFilter extends CallOptions {
  status?: string | string[];
  workflow?: string;
  step?: string;
  code?: string;
  category?: string;
  fingerprint?: string;
  limit?: number;
  [name: string]: unknown;
}

export interface ReplayOptions extends PostOptions {
  mode?: "FROM_FAILED" | "STEP_ONLY" | "FROM_STEP" | "SKIP" | "FULL";
  patch?: Fields;
  input?: Fields;
  output?: unknown;
  fromStepIndex?: number;
  reason?: string;
  dryRun?: boolean;
}

export interface DeadLetters {
  list(filter?: LetterFilter): AsyncGenerator<DeadLetter, void, undefined>;
  get(id: string, options?: CallOptions): Promise<DeadLetter>;
  replay(id: string, options?: ReplayOptions): Promise<Fields>;
  resolve(id: string, options?: PostOptions & { reason?: string }): Promise<DeadLetter>;
}

export class Redrive {
  constructor(options?: ClientOptions);
  readonly dlq: DeadLetters;
  start<Output = unknown>(workflow: string, input?: object, options?: StartOptions): Promise<Run<Output>>;
  run<Output = unknown>(id: string): Run<Output>;
}

export interface StepContext {
  readonly runId: string;
  readonly workflow: string;
  readonly step: string;
  /** Counts from 1. */
  readonly attempt: number;
  /** The same for all attempts and replays of this step: send it to other services. */
  readonly idempotencyKey: string;
  readonly tenant: string;
  readonly correlationId: string;
  readonly traceparent?: string;
  /** Aborted when the run is cancelled, the time limit has passed or the task was taken away. */
  readonly signal: AbortSignal;
  /** Show that the step is alive. Needed for steps with `heartbeat_timeout`. */
  heartbeat(details?: unknown): Promise<void>;
}

export interface Log {
  info(event: string, fields?: object): void;
  warn(event: string, fields?: object): void;
}

export interface WorkerOptions extends ConnectionOptions {
  /** The queue that the steps name in `remote=`. */
  queue: string;
  name?: string;
  /** Steps at a time. Default: 10. */
  concurrency?: number;
  /** How long the server waits for a silent worker before it gives its tasks to others. Default: "30s". */
  lease?: Duration;
  log?: Log;
  /** Keys that decrypt inputs and encrypt outputs and errors. Default: the variable REDRIVE_ENCRYPTION_KEYS. */
  encryptionKeys?: string;
}

export class Worker {
  constructor(options: WorkerOptions);
  /** Register the function of a step. `input` has the arguments of the step by name. */
  step<Input = any, Output = unknown>(
    name: string,
    handler: (input: Input, context: StepContext) => Output | Promise<Output>,
  ): this;
  /** Work until `stop`, or SIGTERM or SIGINT unless `signals` is false. */
  run(options?: { signals?: boolean }): Promise<void>;
  stop(): void;
}

export class RedriveError extends Error {}
export class Unreachable extends RedriveError {}
export class ResultTimeout extends RedriveError {}
export class TaskCancelled extends RedriveError {}

export class Problem extends RedriveError {
  readonly status: number;
  readonly code: string;
  readonly details: Fields;
  readonly errors: { path: string; reason: string }[];
  /** Milliseconds to wait before a repeat, if the server named them. */
  readonly retryAfter: number | null;
}

export class RunFailed extends RedriveError {
  readonly runId: string;
  readonly status: RunStatus;
  readonly code?: string;
  readonly step?: string;
  readonly reason: Fields | null;
}

export class NonRetryable extends RedriveError {
  constructor(message?: string, options?: { cause?: unknown });
}

export class RetryAfter extends RedriveError {
  constructor(delay: Duration, message?: string, options?: { cause?: unknown; status?: number; code?: string });
  readonly delay: number;
}
