// An actor in Node: answers each `run.completed` by one `x.acme.run_praised`. Written from the AsyncAPI document alone:
//   node actor.mjs HOME DOCUMENT [--step]
// With --step it says what it did, one JSON a line, and waits for a line on standard input before it goes on.
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { AckPolicy, connect, DeliverPolicy, headers, JSONCodec } from "nats";

const NAME = "praiser";
const LEASE = 1e9; // nanoseconds; short, as this actor answers at once
const [home, file, mode] = process.argv.slice(2);
const api = JSON.parse(readFileSync(file, "utf8"));
const rules = api["x-sika-append"];
const json = JSONCodec();
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function step(name, event = {}) {
  if (mode !== "--step") return;
  console.log(JSON.stringify({ step: name, event: event.id, run: event.run }));
  if (name !== "ready") await lines.next();
}

const { nats } = JSON.parse(readFileSync(`${home}/server.json`, "utf8"));
const token = readFileSync(`${home}/secrets/nats_token`, "utf8").trim();
const nc = await connect({ servers: nats, token, name: NAME, maxReconnectAttempts: -1 });
const js = nc.jetstream();
const subject = (event) =>
  api.channels.log.address.replace("{kind}", event.kind).replace("{id}", event.aggregate);

// The events of an aggregate after a sequence, from the leader; then the last sequence.
async function* later(event, seq) {
  for (;;) {
    const request = { seq: seq + 1, next_by_subj: subject(event) };
    const reply = json.decode((await nc.request(`$JS.API.STREAM.MSG.GET.${rules.stream}`, json.encode(request))).data);
    if (reply.error?.err_code === rules.noMessage) return;
    if (reply.error) throw new Error(reply.error.description);
    seq = reply.message.seq;
    yield { seq, body: JSON.parse(Buffer.from(reply.message.data, "base64")) };
  }
}

async function answer(event, handled) {
  for (let last = handled; ; ) {
    for await (const { seq, body } of later(event, last)) {
      last = seq;
      if (body.actor === NAME && body.cause === event.id) return "answered before";
      if (body.type === "thread.erased") return "erased";
    }
    const { kind, aggregate, run } = event;
    const body = {
      id: randomUUID(), type: "x.acme.run_praised", kind, aggregate, actor: NAME,
      at: new Date().toISOString().replace("Z", "000+00:00"), run, cause: event.id, text: "Well done.",
    };
    const about = headers();
    about.set(rules.type, body.type);
    about.set(rules.messageId, body.id);
    about.set(rules.guard, `${last}`);
    try {
      await js.publish(subject(event), json.encode(body), { headers: about });
      return "appended";
    } catch (error) {
      if (error.api_error && !rules.conflict.includes(error.api_error.err_code)) throw error;
      // a conflict, or nothing is known: look again
    }
  }
}

const manager = await nc.jetstreamManager();
await manager.consumers.add(rules.stream, {
  durable_name: NAME,
  filter_subject: api.channels.log.address.replace("{kind}", "thread").replace("{id}", "*"),
  ack_policy: AckPolicy.Explicit,
  ack_wait: LEASE,
  deliver_policy: DeliverPolicy.New,
});
const consumer = await js.consumers.get(rules.stream, NAME);
await step("ready");
for await (const message of await consumer.consume({ max_messages: 16 })) {
  if (message.headers?.get(rules.type) !== "run.completed") {
    message.ack();
    continue;
  }
  const keep = setInterval(() => message.working(), LEASE / 3e6);
  const event = json.decode(message.data);
  await step("received", event);
  await step(await answer(event, message.seq), event);
  await message.ackAck();
  clearInterval(keep);
  await step("acknowledged", event);
}
