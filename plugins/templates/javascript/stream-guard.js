// Replaces one word in what the model says, also where the word comes in pieces.
import { logged } from "./logged.js";

// What is dear to build is built in `configure`, which the host calls once per instance.
let config = {};
let wordBytes = 0;

export const meta = logged({
  describe() {
    return JSON.stringify({
      name: "{{name}}",
      version: "0.1.0",
      summary: "Replaces a word in answers",
      "config-schema": { type: "object", properties: { word: { type: "string", default: "foo" }, replacement: { type: "string", default: "bar" } }, additionalProperties: false },
      mutates: true,
      deterministic: true,
    });
  },
  configure(json) {
    config = { word: "foo", replacement: "bar", ...JSON.parse(json) };
    if (config.word === "") throw { tag: "invalid-config", val: "`word` is empty; name one" };
    // It is put into the JSON of a tool call's arguments as it stands.
    if (/["\\\u0000-\u001f]/.test(config.replacement)) {
      throw { tag: "invalid-config", val: "`replacement` has a quote, a backslash or a control character; name another" };
    }
    wordBytes = bytes(config.word);
  },
});

// Spans count in bytes of UTF-8, strings in UTF-16.
function bytes(text) {
  let count = 0;
  for (const character of text) {
    const code = character.codePointAt(0);
    count += code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  }
  return count;
}

// The text behind its first `settled` bytes.
function pending(window) {
  let left = window.settled;
  let at = 0;
  while (left > 0) {
    const character = String.fromCodePoint(window.text.codePointAt(at));
    left -= bytes(character);
    at += character.length;
  }
  return window.text.slice(at);
}

export const streamGuard = logged({
  inspectWindow(ctx, carry, window) {
    // Arguments of a tool call are JSON, whose escapes are not read: in them `"\u0066oo"` is no `foo`. A word that JSON
    // itself writes, such as `true`, would leave none.
    const { word, replacement } = config;
    const text = pending(window);
    const redactions = [];
    let decided = 0;
    let end = window.settled;
    for (let at; (at = text.indexOf(word, decided)) >= 0; ) {
      const start = end + bytes(text.slice(decided, at));
      end = start + wordBytes;
      redactions.push({ span: { start, end }, text: replacement });
      decided = at + word.length;
    }
    // The word may begin at the end of the text, and the rest of it may be in the next window.
    let safe = text.length;
    if (window.ending == null) {
      for (let kept = Math.min(word.length - 1, text.length - decided); kept > 0; kept--) {
        if (word.startsWith(text.slice(text.length - kept))) {
          safe = text.length - kept;
          break;
        }
      }
    }
    return {
      action: redactions.length > 0 ? { tag: "redact", val: redactions } : { tag: "pass" },
      safeThrough: end + bytes(text.slice(decided, safe)),
      carry: new Uint8Array(),
      findings: [],
      attrs: [],
    };
  },
});
