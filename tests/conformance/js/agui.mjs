// AG-UI: its own client, which checks the order of all events.
import { randomUUID } from "node:crypto";
import { HttpAgent } from "@ag-ui/client";
import { ANSWER, assert, main, test } from "./lab.mjs";

const user = (content) => ({ id: randomUUID(), role: "user", content });

test("HttpAgent.runAgent", async ({ url, client }) => {
  const agent = new HttpAgent({ url: `${url}/agui`, threadId: randomUUID(), initialMessages: [user("Hi")] });
  const deltas = [];
  const subscriber = { onTextMessageContentEvent: ({ event }) => deltas.push(event.delta) };
  const { newMessages } = await agent.runAgent({}, subscriber);
  assert.deepEqual(newMessages.map((message) => [message.role, message.content]), [["assistant", ANSWER]]);
  assert.equal(deltas.join(""), ANSWER);
  agent.addMessage(user("Once more"));
  await agent.runAgent();
  assert.deepEqual(agent.messages.map((message) => message.role), ["user", "assistant", "user", "assistant"]);
  const { values } = await client.threads.getState(agent.threadId);
  assert.deepEqual(values.messages.map((message) => message.id), agent.messages.map((message) => message.id));
});

await main((name) => import(name));
