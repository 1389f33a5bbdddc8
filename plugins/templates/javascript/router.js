// Sends long prompts to the model with the longest window.
import { logged } from "./logged.js";

// What is dear to build is built in `configure`, which the host calls once per instance.
let config = {};

export const meta = logged({
  describe() {
    return JSON.stringify({
      name: "{{name}}",
      version: "0.1.0",
      summary: "Routes by the length of the prompt",
      "config-schema": { type: "object", properties: { long_tokens: { type: "integer", minimum: 1, maximum: 1000000, default: 1000 } }, additionalProperties: false },
      mutates: false,
      deterministic: true,
    });
  },
  configure(json) {
    config = { long_tokens: 1000, ...JSON.parse(json) };
  },
});

export const router = logged({
  route(ctx, request, candidates) {
    const long = request.promptTokens > config.long_tokens;
    const order = [...candidates];
    if (long) order.sort((a, b) => b.contextTokens - a.contextTokens);
    return { order: order.map((c) => c.id), reason: long ? "a long prompt" : "a short prompt", attrs: [] };
  },
});
