// What a plugin has in place of a console. An exception that leaves a plugin ends its instance and says nothing; this
// writes it to the server's log first. `tidegate plugin test` shows the log below a case that failed.
import { write } from "tidegate:plugin/log@0.1.0";

function text(value) {
  if (typeof value === "string") return value;
  if (value instanceof Error) {
    // What a capability answered with is its `payload`; as a text it would be `[object Object]`.
    const what = value.payload === undefined ? String(value) : `${value.name}: ${text(value.payload)}`;
    return `${what}\n${value.stack}`.trim();
  }
  try {
    return JSON.stringify(value) ?? String(value);
  } catch {
    return String(value);
  }
}

function say(level, values) {
  for (const line of values.map(text).join(" ").split("\n")) write(level, line, []);
}

globalThis.console = {
  debug: (...values) => say("debug", values),
  log: (...values) => say("info", values),
  info: (...values) => say("info", values),
  warn: (...values) => say("warn", values),
  error: (...values) => say("error", values),
};

const CASES = ["invalid-config", "invalid-input", "denied", "unavailable", "timeout", "unsupported", "other"];

// An error of the contract, which the host is told as it is: `{ tag, val }`, or what a capability threw. `describe` has none,
// and one that is not of the contract ends the instance as an exception does.
function isAnswer(name, error) {
  const told = error instanceof Error ? error.payload : error;
  return name !== "describe" && CASES.includes(told?.tag) && typeof told.val === "string";
}

// The host takes what is returned and waits for nothing: a promise would end the instance without a word.
function returned(answer) {
  if (typeof answer?.then === "function") throw new TypeError("it is async, and nothing waits for its promise");
  return answer;
}

// Functions of an object by name; of an object of a class those of its classes, too, which are no entries of it.
function functionsOf(object) {
  const found = new Map();
  for (let at = object; at && at !== Object.prototype; at = Object.getPrototypeOf(at)) {
    for (const name of Object.getOwnPropertyNames(at)) {
      const call = object[name];
      if (name !== "constructor" && typeof call === "function") found.set(name, call);
    }
  }
  return [...found];
}

// The same functions. What they throw is thrown on; it is logged unless it is an error of the contract.
export function logged(functions) {
  const told = (name, call) => (...args) => {
    try {
      return returned(call.apply(functions, args));
    } catch (error) {
      if (!isAnswer(name, error)) console.error(`${name}:`, error);
      throw error;
    }
  };
  return Object.fromEntries(functionsOf(functions).map(([name, call]) => [name, told(name, call)]));
}
