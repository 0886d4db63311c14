// A conversation by the TypeScript SDK: begun, left, and read on over another connection.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

async function connected(url) {
  const client = new Client({ name: "node", version: "0" });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  return client;
}

async function call(client, name, args) {
  const result = await client.callTool({ name, arguments: args }, undefined, { timeout: 60000 });
  if (result.isError) throw new Error(JSON.stringify(result.content));
  return result.structuredContent;
}

const first = await connected(process.argv[2]);
const begun = await call(first, "chat", { message: "Hello?", thread_id: "node", wait_seconds: 0 });
await first.close();
const second = await connected(process.argv[2]);
const turn = await call(second, "chat_read", { thread_id: "node", run_id: begun.run_id, after: begun.position });
// The run may be over when `chat` answers, which has its message then.
for (const message of [...begun.messages, ...turn.messages]) console.log(`${message.role}: ${message.text}`);
await second.close();
