// The one Python of a visit, in a worker. It starts when a reader first goes into a cell, presses Run or changes the
// playground, and stays while pages are swapped. It runs the code of one client at a time. A client has its `element`
// on the page, `receive` for what the worker says, and `stopped` for when it was stopped.

const PYTHON = (() => {
  let worker = null; // once a reader has asked for it
  let client = null; // the one whose code runs
  let loaded = false;
  const served = location.protocol !== "file:";

  function start() {
    if (worker || !served) return;
    const begun = new Worker(new URL("assets/cell_worker.js", BASE), { type: "module" });
    begun.onmessage = ({ data }) => worker === begun && receive(data);
    begun.onerror = (event) => worker === begun && receive({ broken: event.message || "no answer" });
    [worker, loaded] = [begun, false];
    worker.postMessage({ base: BASE.href });
  }

  function receive(message) {
    loaded ||= Boolean(message.started);
    const receiver = client;
    if (message.ended || message.broken) client = null;
    receiver?.receive(message);
  }

  function run(next, code) {
    stop();
    client = next;
    start();
    worker.postMessage({ code, base: BASE.href });
  }

  // End the worker, which a loop keeps busy, and start the next one at once.
  function stop() {
    if (!client) return;
    const stopped = client;
    worker.terminate();
    worker = client = null;
    start();
    stopped.stopped();
  }

  // The theme swaps pages: what has gone with its page stops.
  document$.subscribe(() => client && !client.element.isConnected && stop());

  return { served, start, run, stop, isLoaded: () => loaded, runs: (asked) => client === asked };
})();
