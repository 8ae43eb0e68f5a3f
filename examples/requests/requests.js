// Sends requests to Carrel from a web page. It needs only WebSocket and fetch, which Node 22 has too.

const ATTEMPTS = 8; // connections in a row without a frame
const FIRST_PAUSE_MS = 200;

export class Requests {
  constructor(server, token) {
    this.server = server.replace(/\/$/, ""); // "http://127.0.0.1:7777"
    this.token = token;
  }

  // Sends a request, calls `onFrame` with each frame, and returns the result. `onQuestion` gets the
  // agent's questions and returns the answers. It reconnects after a lost connection, and misses nothing.
  async generate(asked, { onFrame = () => {}, onQuestion = () => "", signal } = {}) {
    const request_id = asked.request_id ?? crypto.randomUUID();
    const talk = { request_id, after: 0, asked, said: [], socket: null, onFrame, onQuestion };
    signal?.addEventListener("abort", () => this.#say(talk, { type: "cancel", request_id }));
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const heard = talk.heard;
      const outcome = await this.#connection(talk);
      if (outcome?.type === "result") return outcome;
      if (outcome) throw Object.assign(new Error(outcome.message), outcome);
      if (talk.heard !== heard) attempt = 0;
      else await this.#refused();
      await new Promise((then) => setTimeout(then, FIRST_PAUSE_MS * 2 ** attempt));
    }
    throw new Error("The daemon cannot be reached.");
  }

  // Throws if the daemon refuses the token: a browser does not tell a page why a WebSocket failed.
  async #refused() {
    try {
      await this.ask("GET", "/v1/requests?limit=1");
    } catch (error) {
      if (error.code) throw error;
    }
  }

  // Uses one connection until the outcome. Returns null if the connection is lost before that.
  #connection(talk) {
    const { request_id } = talk;
    // A page cannot set headers for a WebSocket: the token goes beside the name of the protocol.
    const address = `${this.server.replace(/^http/, "ws")}/v1/requests`;
    const socket = new WebSocket(address, ["carrel", `carrel.token.${this.token}`]);
    return new Promise((then) => {
      socket.onopen = () => {
        talk.socket = socket;
        // Repeat the request until a frame arrives: the same id makes no second workspace.
        const again = { type: "resume", request_id, after: talk.after };
        const opening = talk.heard ? again : { type: "generate", ...talk.asked, request_id };
        // Frames sent on a lost connection may be lost too; sending them twice does no harm.
        for (const frame of [opening, ...talk.said]) socket.send(JSON.stringify(frame));
      };
      socket.onmessage = (message) => {
        const frame = JSON.parse(message.data);
        talk.heard = (talk.heard ?? 0) + 1;
        talk.after = Math.max(talk.after, frame.seq ?? 0);
        talk.onFrame(frame);
        if (frame.type === "input_needed") this.#answer(talk, frame);
        if (isOutcome(frame)) then(frame);
      };
      socket.onclose = socket.onerror = () => then(null);
    }).finally(() => {
      talk.socket = null;
      socket.close();
    });
  }

  async #answer(talk, { request_id, id, permission, ...question }) {
    const said = await talk.onQuestion({ id, permission, ...question });
    const answer = permission ? { allow: said === "allow" } : { text: String(said) };
    this.#say(talk, { type: "answer", request_id, id, ...answer });
  }

  #say(talk, frame) {
    talk.said.push(frame);
    talk.socket?.send(JSON.stringify(frame));
  }

  // Returns the files as one tar.gz.
  async archive(request_id) {
    return (await this.ask("GET", `/v1/requests/${request_id}/archive`)).blob();
  }

  // Says that the files were fetched: Carrel removes what it held for that.
  async done(request_id) {
    await this.ask("POST", `/v1/requests/${request_id}/done`);
  }

  async ask(method, path) {
    const headers = { Authorization: `Bearer ${this.token}` };
    const answer = await fetch(this.server + path, { method, headers });
    if (answer.ok) return answer;
    const problem = await answer.json();
    throw Object.assign(new Error(`${problem.detail} ${problem.hint ?? ""}`), problem);
  }
}

// An error with another `to` is about a frame that this client sent, and does not end the request.
function isOutcome({ type, to = "generate" }) {
  return type === "result" || (type === "error" && (to === "generate" || to === "resume"));
}
