// Drives a headless Chromium over its debugging pipe (file descriptors 3 and 4). Knows nothing of reports.
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

const PROGRAM = process.env.CHROMIUM ?? "chromium";
const PATIENCE_MS = 60_000;

/** A running browser; `close` ends it and removes its profile. */
export async function launch() {
  const profile = await mkdtemp(join(tmpdir(), "lockstep-browser-"));
  const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"];
  flags.push("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--force-color-profile=srgb");
  flags.push(`--user-data-dir=${profile}`, "--remote-debugging-pipe");
  const child = spawn(PROGRAM, flags, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
  const gone = new Promise((resolve) => child.once("close", resolve));
  const connection = connect(child);
  const close = async () => {
    await Promise.race([connection.send("Browser.close").catch(() => {}), gone]);
    const timer = setTimeout(() => child.kill("SIGKILL"), 5_000);
    await gone;
    clearTimeout(timer);
    await rm(profile, { recursive: true, force: true, maxRetries: 5 });
  };
  return { ...connection, close };
}

/** Messages are JSON, each ended by a zero byte. */
function connect(child) {
  const [input, output] = [child.stdio[3], child.stdio[4]];
  const pending = new Map();
  const listeners = new Set();
  let buffered = Buffer.alloc(0);
  let last = 0;
  const fail = (error) => {
    for (const { reject } of pending.values()) reject(error);
    pending.clear();
  };
  child.once("error", (error) => fail(new Error(`cannot start ${PROGRAM}: ${error.message}`)));
  child.once("close", (code) => fail(new Error(`${PROGRAM} ended with code ${code}`)));
  input.on("error", () => {});
  output.on("data", (chunk) => {
    buffered = Buffer.concat([buffered, chunk]);
    for (let end = buffered.indexOf(0); end >= 0; end = buffered.indexOf(0)) {
      receive(JSON.parse(buffered.subarray(0, end).toString()));
      buffered = buffered.subarray(end + 1);
    }
  });
  const receive = (message) => {
    if (message.id === undefined) return listeners.forEach((listener) => listener(message));
    const waiting = pending.get(message.id);
    pending.delete(message.id);
    if (message.error) waiting?.reject(new Error(`${waiting.method}: ${message.error.message}`));
    else waiting?.resolve(message.result);
  };
  const send = (method, params = {}, sessionId = undefined) =>
    new Promise((resolve, reject) => {
      const id = ++last;
      const timer = setTimeout(() => reject(new Error(`${method}: no answer in ${PATIENCE_MS} ms`)), PATIENCE_MS);
      const settle = (how) => (value) => (clearTimeout(timer), how(value));
      pending.set(id, { method, resolve: settle(resolve), reject: settle(reject) });
      input.write(JSON.stringify({ id, method, params, sessionId }) + "\0");
    });
  const listen = (listener) => (listeners.add(listener), () => listeners.delete(listener));
  return { send, listen };
}

/** A new tab, with everything it complains about in `complaints`. */
export async function tab(browser) {
  const { targetId } = await browser.send("Target.createTarget", { url: "about:blank" });
  const { sessionId } = await browser.send("Target.attachToTarget", { targetId, flatten: true });
  const complaints = [];
  const waiting = new Map();
  const forget = browser.listen((event) => {
    if (event.sessionId !== sessionId) return;
    waiting.get(event.method)?.(event.params);
    const complaint = complaintOf(event);
    if (complaint) complaints.push(complaint);
  });
  const send = (method, params) => browser.send(method, params, sessionId);
  const event = (method) => new Promise((resolve) => waiting.set(method, resolve));
  for (const domain of ["Page", "Runtime", "Log", "Network"]) await send(`${domain}.enable`);
  const open = async (url) => {
    const loaded = event("Page.loadEventFired");
    await send("Page.navigate", { url });
    await loaded;
  };
  const evaluate = async (source) => {
    const answer = await send("Runtime.evaluate", { expression: source, returnByValue: true, awaitPromise: true });
    if (answer.exceptionDetails) throw new Error(`the check itself failed: ${exceptionText(answer.exceptionDetails)}`);
    return answer.result.value;
  };
  const close = async () => (forget(), browser.send("Target.closeTarget", { targetId }));
  return { send, open, evaluate, close, complaints };
}

function complaintOf({ method, params }) {
  if (method === "Runtime.exceptionThrown") return `exception: ${exceptionText(params.exceptionDetails)}`;
  if (method === "Log.entryAdded" && params.entry.level === "error") return `console error: ${params.entry.text}`;
  if (method === "Runtime.consoleAPICalled" && ["error", "assert"].includes(params.type))
    return `console error: ${params.args.map((arg) => arg.value ?? arg.description).join(" ")}`;
  if (method === "Network.requestWillBeSent" && !/^(file|data|about):/.test(params.request.url))
    return `network request: ${params.request.url}`;
  return undefined;
}

function exceptionText(details) {
  return (details.exception?.description ?? details.text).split("\n")[0];
}
