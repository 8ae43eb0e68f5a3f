// Runs the example of docs/requests.md as a page does, with its origin, and loses its connection
// on the way. Prints one JSON object with all that it saw.

import { pathToFileURL } from "node:url";

const [module, server, token, origin] = process.argv.slice(2);
const { Requests } = await import(pathToFileURL(module));

// What a browser adds by itself.
const [OwnSocket, ownFetch] = [globalThis.WebSocket, globalThis.fetch];
const sockets = [];
globalThis.WebSocket = class extends OwnSocket {
  constructor(address, protocols) {
    super(address, { protocols, headers: { Origin: origin } });
    sockets.push(this);
  }
};
globalThis.fetch = async (address, options) => {
  const answer = await ownFetch(address, { ...options, headers: { ...options.headers, Origin: origin } });
  if (answer.headers.get("access-control-allow-origin") !== origin) throw new TypeError("CORS");
  return answer;
};

const frames = [];
const questions = [];
const requests = new Requests(server, token);
const asked = {
  instructions: 'write hello.py print("hello")\nask Is that all?\nrepeat 20 say more\nsay It is done.',
  frontend: "scripted",
  retention: { hold_s: 600 },
};
const result = await requests.generate(asked, {
  onFrame(frame) {
    frames.push(frame);
    if (frame.type === "event" && sockets.length === 1) sockets[0].close();
  },
  onQuestion({ question }) {
    questions.push(question);
    if (sockets.length === 2) sockets[1].close(); // the answer waits for the next
    return "yes";
  },
});
const all = await (await requests.ask("GET", `/v1/requests/${result.request_id}/events`)).text();
const archive = Buffer.from(await (await requests.archive(result.request_id)).arrayBuffer());
await requests.done(result.request_id);

const protocols = [...new Set(sockets.map((socket) => socket.protocol))];

let refused;
try {
  await new Requests(server, "crl_wrong").generate(asked);
} catch (error) {
  refused = error.code;
}
const cancelling = new AbortController();
let cancelled;
try {
  await requests.generate({ instructions: "sleep 600", frontend: "scripted" }, {
    onFrame: (frame) => frame.type === "event" && cancelling.abort(),
    signal: cancelling.signal,
  });
} catch (error) {
  cancelled = error.code;
}
const told = { frames, questions, result, all, refused, cancelled, protocols };
console.log(JSON.stringify({ ...told, archive: archive.toString("base64") }));
