// Holds answers to a shape: each choice must be one JSON object that has the required keys with values of the
// required types. Code fences around it are taken off; anything else is refused.
import { count } from "tidegate:plugin/metrics@0.1.0";

let required = {};

export const meta = {
  describe() {
    const types = ["string", "number", "boolean", "object", "array"];
    const schema = {
      type: "object",
      properties: {
        required: {
          type: "object",
          description: "Keys, and the type of each",
          additionalProperties: { type: "string", enum: types },
        },
      },
      required: ["required"],
      additionalProperties: false,
    };
    return JSON.stringify({
      name: "json-guard",
      version: "0.1.0",
      summary: "Holds answers to a JSON shape",
      "config-schema": schema,
      mutates: true,
      deterministic: true,
      metrics: [{ name: "misshapen", summary: "Answers that were refused" }],
    });
  },
  configure(json) {
    required = JSON.parse(json).required;
  },
};

const typeOf = (value) => (Array.isArray(value) ? "array" : value === null ? "null" : typeof value);

// What is wrong with a text, or undefined.
function fault(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return "it is not JSON";
  }
  if (typeOf(value) !== "object") return "it is not an object";
  for (const [key, type] of Object.entries(required)) {
    if (!(key in value)) return `the key ${key} is missing`;
    if (typeOf(value[key]) !== type) return `the key ${key} is not of type ${type}`;
  }
  return undefined;
}

const FENCE = "```";

// Without a regular expression: several parts of one that may be the same text are tried in all ways.
function unfenced(text) {
  const whole = text.trim();
  if (whole.length < 2 * FENCE.length || !whole.startsWith(FENCE) || !whole.endsWith(FENCE)) return text;
  const inner = whole.slice(FENCE.length, -FENCE.length);
  return (inner.startsWith("json") ? inner.slice("json".length) : inner).trim();
}

// Bytes of UTF-8.
const bytes = (text) => [...text].reduce((sum, c) => sum + (c < "\u0080" ? 1 : c < "\u0800" ? 2 : c.length === 1 ? 3 : 4), 0);

export const outputGuard = {
  inspectOutput(ctx, output) {
    const edits = [];
    for (const choice of output.choices) {
      const part = choice.parts.findIndex((part) => part.tag === "text");
      const text = part < 0 ? "" : choice.parts[part].val;
      const inner = unfenced(text);
      const wrong = fault(inner);
      if (wrong !== undefined) {
        count("misshapen", 1);
        const refusal = { code: "misshapen", publicMessage: "The answer has not the required shape.", privateReason: wrong };
        return { action: { tag: "refuse", val: refusal }, findings: [], attrs: [] };
      }
      if (inner !== text) {
        const span = { start: 0, end: bytes(text) };
        edits.push({ tag: "replace-text", val: { messageId: choice.id, part, span, text: inner } });
      }
    }
    return { action: edits.length > 0 ? { tag: "rewrite", val: edits } : { tag: "allow" }, findings: [], attrs: [] };
  },
};
