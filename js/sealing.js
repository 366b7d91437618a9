/** Encryption of payloads at the step worker, in the form of the Python package: `enc1:<key id>:<base64 of AES-256-GCM>`. */

import { createCipheriv, createDecipheriv, createHash, createHmac, randomBytes } from "node:crypto";
import { NonRetryable, RedriveError } from "./errors.js";

const SEALED = /^enc1:([0-9a-f]{8}):([A-Za-z0-9+/]+={0,2})$/;
const NONCE = 12;
const TAG = 16;

/** Return the encrypted text of a value such as `{ sealed: "enc1:..." }`; undefined for any other value. */
function textOf(value) {
  const text = Object(value).sealed;
  return typeof text === "string" && Object.keys(value).length === 1 && SEALED.test(text) ? text : undefined;
}

/** The encryption keys of a worker: the first one encrypts, unless the word `plain` is in its place; all decrypt. */
export class Sealing {
  #keys = new Map();
  #first;

  constructor(text) {
    for (const [number, part] of text.split(",").map((each) => each.trim()).entries()) {
      if (number === 0 && part === "plain") continue;
      const key = Buffer.from(part, "base64");
      if (key.length !== 32) throw new RedriveError(`encryption key ${number + 1} invalid: give the base64 of 32 bytes`);
      const id = createHash("sha256").update("redrive key id\0").update(key).digest("hex").slice(0, 8);
      this.#keys.set(id, key);
      if (number === 0) this.#first = { key, head: `enc1:${id}:` };
    }
  }

  /** Return the keys of the setting, null if there are none. */
  static read(text = process.env.REDRIVE_ENCRYPTION_KEYS) {
    return text?.trim() ? new Sealing(text) : null;
  }

  #sealText(text, tenant) {
    if (!this.#first || !text) return text;
    const { key, head } = this.#first;
    const nonce = randomBytes(NONCE);
    const cipher = createCipheriv("aes-256-gcm", key, nonce).setAAD(Buffer.from(head));
    const parts = [nonce, cipher.update(`${tenant}\0${text}`), cipher.final(), cipher.getAuthTag()];
    return head + Buffer.concat(parts).toString("base64");
  }

  /** Return the value that stands for an output or for details. */
  seal(value, tenant) {
    return this.#first ? { sealed: this.#sealText(JSON.stringify(value), tenant) } : value;
  }

  /** Return what `fail` sends, with its texts encrypted and with a keyed hash that groups equal errors. */
  sealError({ error, ...rest }, tenant) {
    if (!this.#first) return { error, ...rest };
    const secret = createHmac("sha256", this.#first.key).update("redrive shapes of failures").digest();
    const normal = error.message.replace(/[\w-]*\d[\w.:-]*/g, "<n>").replace(/(["'`])(?:(?!\1).)*\1/g, "<text>");
    const sealed = {
      message: this.#sealText(error.message, tenant),
      stack: this.#sealText(error.stack, tenant),
      details: error.details && this.seal(error.details, tenant),
      shape: createHmac("sha256", secret).update(`${tenant}\0${normal}`).digest("hex").slice(0, 32),
    };
    return { error: { ...error, ...sealed }, ...rest };
  }

  /** Return a value decrypted; one in clear is returned as it is. */
  static open(sealing, value, tenant) {
    const text = textOf(value);
    return text === undefined ? value : JSON.parse(openText(text, sealing ? sealing.#keys : new Map(), tenant));
  }
}

function openText(text, keys, tenant) {
  const [, id, body] = SEALED.exec(text);
  const data = Buffer.from(body, "base64");
  if (!keys.has(id)) throw new NonRetryable(`input encrypted with key ${id}: add that key to REDRIVE_ENCRYPTION_KEYS`);
  const decipher = createDecipheriv("aes-256-gcm", keys.get(id), data.subarray(0, NONCE), { authTagLength: TAG });
  decipher.setAAD(Buffer.from(`enc1:${id}:`)).setAuthTag(data.subarray(-TAG));
  let opened;
  try {
    opened = Buffer.concat([decipher.update(data.subarray(NONCE, -TAG)), decipher.final()]).toString();
  } catch (cause) {
    throw new NonRetryable(`input encrypted with key ${id} is damaged`, { cause });
  }
  const end = opened.indexOf("\0");
  if (opened.slice(0, end) !== tenant) throw new NonRetryable("input encrypted for another tenant");
  return opened.slice(end + 1);
}
