// What the cases are made of: a client of the SDK under test, the same server over plain HTTP, the models' gates.
import { strict as assert } from "node:assert";
import { randomUUID } from "node:crypto";
import { parseArgs } from "node:util";

export { assert };
export const AGENT = "lead_agent";
export const ANSWER = "Hello to you, too.";
const SECONDS = 60;
const AT_ONCE = 6;
const cases = new Map();

export function test(name, work) {
  cases.set(name, work);
}

export class Lab {
  constructor(url, models, sdk) {
    this.url = `${url}/api`;
    this.control = models;
    this.sdk = sdk;
    this.mark = randomUUID().replaceAll("-", "");
    this.requests = [];
    this.client = this.connect();
  }

  // A client whose requests are noted.
  connect(more = {}) {
    const onRequest = (url, init) => {
      this.requests.push({ method: init.method ?? "GET", path: url.pathname.replace(/^\/api/, ""), query: url.search, init });
      return init;
    };
    return new this.sdk.Client({ apiUrl: this.url, apiKey: null, onRequest, ...more });
  }

  // The payload of a run. The mark of the case ends what the user says.
  asked(model = "hello", text = "Hi", more = {}) {
    return { input: this.input(text), context: { model_name: model }, ...more };
  }

  input(text = "Hi") {
    return { messages: [{ type: "human", content: `${text} @${this.mark}` }] };
  }

  async thread(payload) {
    return (await this.client.threads.create(payload)).thread_id;
  }

  async said(model = "hello", text = "Hi", thread = undefined) {
    const found = thread ?? (await this.thread());
    return [found, await this.client.runs.wait(found, AGENT, this.asked(model, text))];
  }

  async reached() {
    await this.ok(await fetch(`${this.control}/control/waiting/${this.mark}`));
  }

  async release() {
    await this.ok(await fetch(`${this.control}/control/release/${this.mark}`, { method: "POST" }));
  }

  async ok(response) {
    assert.ok(response.ok, `${response.status} ${await response.text()}`);
    return response;
  }

  async ended(thread, run) {
    return until(async () => {
      const { status } = await this.client.runs.get(thread, run);
      return status !== "pending" && status !== "running" && status;
    });
  }

  texts(values) {
    return (values.messages ?? []).map(({ content }) =>
      typeof content === "string" ? content.replace(` @${this.mark}`, "") : content,
    );
  }
}

export async function all(stream) {
  const found = [];
  for await (const part of stream) found.push(part);
  return found;
}

// The first true answer of a probe.
export async function until(probe, what = probe.toString()) {
  const deadline = Date.now() + SECONDS * 1000;
  while (Date.now() < deadline) {
    const found = await probe();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(`never: ${what}`);
}

export async function status(work) {
  try {
    await work;
  } catch (error) {
    return error.status ?? error.response?.status ?? String(error);
  }
  return "no error";
}

async function done(name, url, models, sdk) {
  const began = Date.now();
  const result = { case: name, outcome: "passed", text: "" };
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("not done in time")), 2 * SECONDS * 1000);
  });
  try {
    const skipped = await Promise.race([cases.get(name)(new Lab(url, models, sdk)), late]);
    if (typeof skipped === "string") Object.assign(result, { outcome: "skipped", text: skipped });
  } catch (error) {
    Object.assign(result, { outcome: "failed", text: `${error.stack ?? error}` });
  }
  clearTimeout(timer);
  return { ...result, seconds: (Date.now() - began) / 1000 };
}

// Do the cases that the command line names; a line of JSON for each.
export async function main(load) {
  const text = { type: "string" };
  const options = { sdk: text, url: text, models: text };
  const { values, positionals } = parseArgs({ options, allowPositionals: true });
  const sdk = await load(values.sdk);
  const waiting = [...positionals];
  const worker = async () => {
    for (let name = waiting.shift(); name; name = waiting.shift()) {
      console.log(JSON.stringify(await done(name, values.url, values.models, sdk)));
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  process.exit(0);
}
