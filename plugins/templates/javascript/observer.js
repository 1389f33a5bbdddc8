// Counts requests by how they ended.
import { count } from "tidegate:plugin/metrics@0.1.0";
import { logged } from "./logged.js";

// What is dear to build is built in `configure`, which the host calls once per instance.
let config = {};

export const meta = logged({
  describe() {
    return JSON.stringify({
      name: "{{name}}",
      version: "0.1.0",
      summary: "Counts requests",
      "config-schema": { type: "object", properties: {  }, additionalProperties: false },
      mutates: false,
      deterministic: false,
      metrics: [
        { name: "answered", summary: "Requests that were answered" },
        { name: "others", summary: "Requests that ended in another way" },
      ],
    });
  },
  configure(json) {
    config = { ...JSON.parse(json) };
  },
});

export const observer = logged({
  onComplete(ctx, summary) {
    count(summary.outcome === "answered" ? "answered" : "others", 1);
  },
});
