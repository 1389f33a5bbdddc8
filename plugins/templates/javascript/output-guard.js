// Refuses answers that hold a word.
import { logged } from "./logged.js";

// What is dear to build is built in `configure`, which the host calls once per instance.
let config = {};

export const meta = logged({
  describe() {
    return JSON.stringify({
      name: "{{name}}",
      version: "0.1.0",
      summary: "Refuses answers that hold a word",
      "config-schema": { type: "object", properties: { word: { type: "string", minLength: 1, default: "forbidden" } }, additionalProperties: false },
      mutates: false,
      deterministic: true,
    });
  },
  configure(json) {
    config = { word: "forbidden", ...JSON.parse(json) };
  },
});

const refusal = { code: "word", publicMessage: "This answer holds a word that is not allowed here." };

// The text of a part that has one: what is said, reasoned or refused, what a tool answered, and what it is called with: JSON,
// whose escapes are not read.
const textOf = ({ tag, val }) => {
  if (tag === "tool-outcome") return val.content;
  if (tag === "tool-call") return val.arguments;
  return ["text", "reasoning", "refusal"].includes(tag) ? val : "";
};

export const outputGuard = logged({
  inspectOutput(ctx, output) {
    const parts = output.choices.flatMap((message) => message.parts);
    const found = parts.some((part) => textOf(part).includes(config.word));
    return { action: found ? { tag: "refuse", val: refusal } : { tag: "allow" }, findings: [], attrs: [] };
  },
});
