// The Skills client of the TypeScript SDK 2.x: reads every file of every skill, and checks sizes and digests.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { SKILLS_EXTENSION_ID, SkillsClient } from "@modelcontextprotocol/client/ext/skills";

const [target, directory] = process.argv.slice(2);
const client = new Client(
  { name: "skills", version: "1.0.0" },
  { capabilities: { extensions: { [SKILLS_EXTENSION_ID]: {} } }, versionNegotiation: { mode: "auto" } },
);
await client.connect(new StreamableHTTPClientTransport(new URL(target)));
const skills = new SkillsClient(client);
const report = { supported: skills.supported, skills: {} };
for (const skill of (await skills.list()).skills) {
  const again = (await skills.get(skill.uri)).skill;
  const files = {};
  for (const { uri } of skill.resources) {
    const file = await skills.read(skill, uri);
    files[uri] = { verified: file.verified, base64: Buffer.from(file.bytes).toString("base64") };
  }
  // As a model follows a reference in the text of a skill.
  const relative = await skills.read(again, "references/day.md").then(({ text }) => text, (error) => error.reason);
  report.skills[skill.uri] = { same: JSON.stringify(again) === JSON.stringify(skill), files, relative };
}
if (skills.directoryRead && directory) {
  report.directory = (await skills.readDirectory(directory)).resources;
}
await client.close();
console.log(JSON.stringify(report));
