// The validators of the TypeScript SDK, 1.x or 2.x, as its client uses them: reads cases from standard input, each
// `{original, repaired, instances}`, and prints for each why the repaired schema does not compile, or which instances
// the original accepts alone and the repaired one refuses.
import { readFileSync } from "node:fs";

const { AjvJsonSchemaValidator } = await import(process.argv[2]);
console.warn = console.error = console.log = () => {};

function verdicts(make, schema, instances) {
  const check = make().getValidator(schema);
  return instances.map((instance) => check(instance).valid === true);
}

const shared = new AjvJsonSchemaValidator();
const found = JSON.parse(readFileSync(0, "utf8")).map(({ original, repaired, instances }) => {
  let accepted;
  try {
    accepted = verdicts(() => shared, repaired, instances);
  } catch (error) {
    return { error: String(error).slice(0, 300) };
  }
  let directly;
  try {
    directly = verdicts(() => new AjvJsonSchemaValidator(), original, instances);
  } catch {
    return {};
  }
  const refused = instances.filter((_, index) => directly[index] && !accepted[index]);
  return refused.length ? { refused } : {};
});
process.stdout.write(JSON.stringify(found));
