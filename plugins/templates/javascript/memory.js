// Remembers what its callers say their name is.
import { get, set, delete as remove } from "tidegate:plugin/kv@0.1.0";
import { logged } from "./logged.js";

export const meta = logged({
  describe() {
    return JSON.stringify({
      name: "{{name}}",
      version: "0.1.0",
      summary: "Remembers what callers say their name is",
      "config-schema": { type: "object", properties: {}, additionalProperties: false },
      mutates: false,
      deterministic: false,
      capabilities: [{ name: "kv", reason: "The names are kept there" }],
    });
  },
  configure() {},
});

// Storage is the tenant's, or its project's; its callers are kept apart here.
const key = (ctx) => `name/${ctx.caller}`;
const item = (name) => ({ id: "name", text: `The user's name is ${name}.`, attrs: [] });

// Values are bytes; a name here is kept percent-encoded, which needs no more than ASCII.
const bytes = (name) => Uint8Array.from(encodeURIComponent(name), (c) => c.charCodeAt(0));
const text = (value) => decodeURIComponent(String.fromCharCode(...value));

export const memory = logged({
  recall(ctx) {
    const known = get(key(ctx));
    return known == null ? [] : [item(text(known))];
  },
  remember(ctx, exchange) {
    const said = exchange.messages.filter((message) => message.role.tag === "user").flatMap((message) => message.parts);
    const names = said.map((part) => part.tag === "text" && /my name is ([\p{L}\p{N}]+)/iu.exec(part.val)?.[1]);
    const name = names.find(Boolean);
    if (!name) return [];
    set(key(ctx), bytes(name), undefined);
    return [item(name)];
  },
  forget(ctx, ids) {
    if (!ids.includes("name") || get(key(ctx)) == null) return 0;
    remove(key(ctx));
    return 1;
  },
});
