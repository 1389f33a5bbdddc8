// Finds passages that share a word with the question. Put your own search in its place.
import { logged } from "./logged.js";

// What is dear to build is built in `configure`, which the host calls once per instance.
let config = {};

export const meta = logged({
  describe() {
    return JSON.stringify({
      name: "{{name}}",
      version: "0.1.0",
      summary: "Finds passages by their words",
      "config-schema": { type: "object", properties: {  }, additionalProperties: false },
      mutates: false,
      deterministic: true,
    });
  },
  configure(json) {
    config = { ...JSON.parse(json) };
  },
});

const passages = [
  { id: "ferry", text: "The ferry leaves at nine." },
  { id: "lighthouse", text: "The lighthouse was built of granite." },
];

// Words of four letters and more, in lower case.
const words = (text) => text.toLowerCase().match(/[\p{L}\p{N}]{4,}/gu) ?? [];

export const retriever = logged({
  retrieve(ctx, query) {
    const asked = new Set(words(query.text));
    return passages
      .map((passage) => ({ ...passage, score: words(passage.text).filter((word) => asked.has(word)).length, attrs: [] }))
      .filter((chunk) => chunk.score > 0)
      .sort((a, b) => b.score - a.score)
      .slice(0, query.topK);
  },
});
