// The public TypeScript SDK drives `sika acp`, whose command line follows; prints what it was told as JSON.
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const [command, ...words] = process.argv.slice(2);
const agent = spawn(command, words, { stdio: ["pipe", "pipe", "inherit"] });
const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
const { agent: to, client: of } = acp.methods;
const updates = [];
const asked = [];

const editor = acp
  .client({ name: "editor" })
  .onNotification(of.session.update, ({ params }) => void updates.push(params))
  .onRequest(of.session.requestPermission, ({ params }) => {
    asked.push(params.options.map((option) => option.kind));
    return { outcome: { outcome: "selected", optionId: params.options[0].optionId } };
  });

await editor.connectWith(stream, async (sika) => {
  const first = await sika.request(to.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: { fs: { readTextFile: false, writeTextFile: false } },
  });
  const session = { cwd: process.cwd(), mcpServers: [] };
  const { sessionId } = await sika.request(to.session.new, session);
  const option = { sessionId, configId: "model", type: "select", value: "mailing" };
  await sika.request(to.session.setConfigOption, option);
  const done = await sika.request(to.session.prompt, { sessionId, prompt: [{ type: "text", text: "Mail" }] });
  const live = updates.splice(0).map(({ update }) => update);
  await sika.request(to.session.load, { ...session, sessionId });
  const loaded = updates.splice(0).map(({ update }) => update.sessionUpdate);
  const { sessions } = await sika.request(to.session.list, {});
  const listed = sessions.map((info) => info.sessionId === sessionId && info.cwd === session.cwd);
  console.log(JSON.stringify({ version: first.protocolVersion, done, live, asked, loaded, listed }));
});
agent.stdin.end();
