// A tool that tells the host's time.
import { nowUnixMs } from "tidegate:plugin/clock@0.1.0";
import { logged } from "./logged.js";

// What is dear to build is built in `configure`, which the host calls once per instance.
let config = {};

export const meta = logged({
  describe() {
    return JSON.stringify({
      name: "{{name}}",
      version: "0.1.0",
      summary: "A tool that tells the time",
      "config-schema": { type: "object", properties: {  }, additionalProperties: false },
      mutates: false,
      deterministic: false,
    });
  },
  configure(json) {
    config = { ...JSON.parse(json) };
  },
});

export const toolProvider = logged({
  listTools() {
    const hints = { readOnly: true, destructive: false, idempotent: true, openWorld: false };
    const description = "The time now, in milliseconds since 1970.";
    return [{ name: "now", description, inputSchema: '{"type":"object"}', hints, attrs: [] }];
  },
  callTool(ctx, call) {
    if (call.name !== "now") throw { tag: "unsupported", val: `no tool ${call.name}` };
    return { callId: call.id, content: String(nowUnixMs()), structured: undefined, isError: false };
  },
});
