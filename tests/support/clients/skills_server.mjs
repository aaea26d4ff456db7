// The Skills server of the TypeScript SDK 2.x over a folder of skills, with directory reads.
import { McpServer } from "@modelcontextprotocol/server";
import { loadSkills } from "@modelcontextprotocol/server/ext/skills/node";
import { serveStdio } from "@modelcontextprotocol/server/stdio";

const [name, root] = process.argv.slice(2);
const skills = await loadSkills(root, { pageSize: 2 });
serveStdio(() => {
  const server = new McpServer({ name, version: "1.0.0" });
  skills.attach(server);
  return server;
});
