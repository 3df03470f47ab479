/* Replays a trace of the paged KV cache (docs/trace.md): the states that it says, and in words what each step did.
 *
 * Pure: it touches no page. `replay` makes states of a trace, `advance` one more of one more line, `survey` says who
 * uses which block, `blockState` what a block is, `describe` what a step did, `computed` what it computes.
 * block_view.js draws them. replay.py reads a trace for Python.
 */
(() => {
  "use strict";

  const HUES = 8; // as many as block_view.css has colours; the letters tell requests apart beyond
  const NOTHING = { // before the first line
    step: 0, requests: new Map(), tables: new Map(), cached: [], numArrived: 0, texts: new Map(), remembered: new Map(),
  };

  // ------------------------------------------------------------------ from the trace to states

  /* {run, states}: the first line, and the state after each further one. States share what stays the same. */
  function replay(traceText) {
    const lines = traceText.split("\n").filter((line) => line.trim());
    const parsed = lines.map((line, index) => {
      try {
        return JSON.parse(line);
      } catch (error) {
        if (index && index === lines.length - 1) return null; // a run that was cut off leaves half a line
        throw new Error(`line ${index + 1} of the trace is not JSON: ${error.message}`);
      }
    });
    const [run, ...steps] = parsed.filter((line) => line !== null);
    if (!run || run.trace !== 1) throw new Error("this is not a trace of version 1: see docs/trace.md");
    const states = [];
    let state = NOTHING;
    for (const line of steps) states.push((state = advance(run, state, line)));
    return { run, states };
  }

  /* The state after one more line. `before` is left as it was. */
  function advance(run, before, line) {
    const requests = new Map(before.requests);
    const tables = new Map(before.tables);
    let { numArrived } = before;
    for (const { id } of line.ended ?? []) requests.delete(id);
    for (const arrival of line.arrived ?? []) {
      const label = freeLabel(arrival.id, numArrived, requests);
      requests.set(arrival.id, { ...arrival, label, hue: numArrived++ % HUES });
    }
    for (const id of line.preempted ?? []) {
      const request = requests.get(id);
      if (request) requests.set(id, { ...request, preempted: true, numToCompute: numToCompute(request, before) });
    }
    for (const name of line.dropped ?? []) tables.delete(name);
    for (const [name, { blocks, tokens, host = false }] of Object.entries(line.tables ?? {})) {
      tables.set(name, { name, request: requestOf(name), blocks, tokens, host });
    }
    for (const [name, , stop] of line.rows ?? []) tables.set(name, { ...tables.get(name), tokens: stop });
    const step = line.step ?? null; // the last line belongs to no step
    const known = { texts: textsAfter(before, line), remembered: remember(run, before, line) };
    const state = { step, requests, tables, cached: line.cached ?? before.cached, numArrived, ...known, line };
    state.events = describe(run, before, state);
    return state;
  }

  /* The texts of each sequence's tokens. States share a list that only grows: none reads beyond its own tokens. */
  function textsAfter(before, line) {
    const texts = new Map(before.texts);
    for (const name of line.dropped ?? []) texts.delete(name);
    for (const [name, [start, ...added]] of Object.entries(line.texts ?? {})) {
      const known = texts.get(name);
      if (known?.length === start) known.push(...added);
      else texts.set(name, [...(known ?? []).slice(0, start), ...added]);
    }
    return texts;
  }

  /* The texts in full blocks of tables that end or change: a block that stays cached still holds them. */
  function remember(run, before, line) {
    const changed = [...(line.dropped ?? []), ...Object.keys(line.tables ?? {})].map((name) => before.tables.get(name));
    const remembered = new Map(before.remembered);
    for (const table of changed.filter((table) => table && !table.host && before.texts.has(table.name))) {
      table.blocks.slice(0, Math.floor(table.tokens / run.block_size)).forEach((block, index) => {
        remembered.set(block, textsIn(run, before, table, index));
      });
    }
    return remembered;
  }

  /* The texts of the tokens in logical block `index` of a table. */
  function textsIn(run, state, table, index) {
    const start = index * run.block_size;
    return (state.texts.get(table.name) ?? []).slice(start, start + filled(table, index, run.block_size));
  }

  /* The tokens of a request that is preempted, if it has one sequence: those in its table, and the one that was
   * sampled last. Where it was still at its prompt, or at what it lost before, they are as many as then. */
  function numToCompute(request, before) {
    const own = [...before.tables.values()].filter((table) => table.request === request.id);
    const known = request.numToCompute ?? request.prompt_tokens;
    return own.length === 1 ? Math.max(known, own[0].tokens + 1) : undefined;
  }

  /* A sequence is named after its request, with ".0", ".1", ... where that has several. */
  const requestOf = (name) => name.replace(/\.[0-9]+$/, "");

  /* What stands in the cells: the id where it is as short as a letter, else A, B, ... Z, AA, AB, ... */
  function freeLabel(id, number, requests) {
    const taken = new Set([...requests.values()].map((request) => request.label));
    if (id && [...id].length <= 2 && !taken.has(id)) return id;
    const letters = (n) => (n < 26 ? "" : letters(Math.floor(n / 26) - 1)) + String.fromCharCode(65 + (n % 26));
    while (taken.has(letters(number))) number++;
    return letters(number);
  }

  /* The label of a table's sequence: A, or A.1 where the request has several. */
  function labelOf(table, requests) {
    const request = requests.get(table.request);
    return request.label + (request.sequences > 1 ? table.name.slice(table.request.length) : "");
  }

  /* Slots of logical block `index` that hold a token. */
  const filled = (table, index, size) => Math.max(0, Math.min(size, table.tokens - index * size));

  /* Who uses each block, when each cached one is evicted, and the counts. A key is a block's number, with "h"
   * before it in the host pool. */
  function survey(run, state) {
    const users = new Map();
    for (const table of state.tables.values()) {
      table.blocks.forEach((block, index) => {
        const key = (table.host ? "h" : "") + block;
        if (!users.has(key)) users.set(key, []);
        users.get(key).push({ table, index, filled: filled(table, index, run.block_size) });
      });
    }
    const counts = { used: 0, shared: 0, saved: 0, waste: 0, host: 0 };
    for (const [key, uses] of users) {
      if (key[0] === "h") {
        counts.host++;
        continue;
      }
      counts.used++;
      counts.shared += uses.length > 1;
      counts.saved += uses.length - 1;
      counts.waste += run.block_size - Math.max(...uses.map((use) => use.filled));
    }
    counts.cached = state.cached.length;
    counts.free = run.num_blocks - counts.used - counts.cached;
    const turns = new Map(state.cached.map((block, i) => [`${block}`, i + 1]));
    return { users, turns, counts };
  }

  /* What a block is, used, cached or free, and how many tables name it. `seen` is a survey. */
  function blockState(key, seen) {
    const count = seen.users.get(key)?.length ?? 0;
    return { kind: count ? "used" : seen.turns.has(key) ? "cached" : "free", count };
  }

  // ------------------------------------------------------------------ in words

  /* What a step did: a list of events {kind, parts}; a part is text, or {key, text} for a block. */
  function describe(run, before, after) {
    const { line, requests, tables } = after;
    const events = [];
    const say = (kind, ...parts) => events.push({ kind, parts: parts.flat(2) });
    const block = (number) => ({ key: `${number}`, text: `${number}` });
    const onHost = (number) => ({ key: `h${number}`, text: `host ${number}` });
    const blocks = (numbers) => [numbers.length > 1 ? "blocks " : "block ", few(numbers.map(block))];
    const name = (id) => (requests.get(id) ?? before.requests.get(id))?.label ?? id;
    const moves = (line.moves ?? []).map(([kind, source, destination, id]) => ({ kind, source, destination, id }));
    const copies = new Map(moves.filter((move) => move.kind === "copy").map((move) => [move.destination, move]));
    const arrived = new Set((line.arrived ?? []).map((arrival) => arrival.id));
    const admitted = new Set(line.admitted ?? []);

    for (const { id, outputs } of line.ended ?? []) {
      const how = outputs.map(([reason, tokens]) => `${reason ?? "cut off"} after ${plural(tokens, "token")}`);
      const text = outputs.length === 1 && outputs[0][2].trim().slice(0, 80);
      say("ended", `${before.requests.get(id)?.label ?? id} ended: `, few([...new Set(how)]), text ? `, “${text}”` : "");
    }
    const waiting = [...arrived].filter((id) => !admitted.has(id));
    const doWait = waiting.length > 1 ? " arrive and wait" : " arrives and waits";
    if (waiting.length) say("arrived", few(waiting.map(name)), doWait);
    if (admitted.size) say("admitted", few([...admitted].map(name)), admitted.size > 1 ? " begin" : " begins");
    for (const id of line.preempted ?? []) {
      const out = moves.filter((move) => move.kind === "out" && move.id === id);
      const pairs = out.map((move) => [block(move.source), " → ", onHost(move.destination)]);
      if (out.length) say("swapped out", `preempted: ${name(id)} is swapped out, block `, few(pairs));
      else say("preempted", `preempted: ${name(id)} gives its blocks up, to compute them again`);
    }

    // As the tables were before the step computed. Blocks taken: filled by a move, or still to be filled.
    const here = Object.entries(line.tables ?? {}).filter(([, table]) => !table.host)
      .map(([name, { tokens }]) => ({ ...tables.get(name), numFull: Math.floor(tokens / run.block_size) }));
    const landed = moves.filter((move) => move.kind !== "out").map((move) => move.destination);
    const renewed = new Set((line.dropped ?? []).filter((name) => name in (line.tables ?? {})));
    const taken = new Set([...landed, ...here.flatMap((table) => table.blocks.slice(table.numFull))]);
    for (const id of new Set(here.map((table) => table.request))) {
      const own = here.filter((table) => table.request === id);
      const past = arrived.has(id) ? []
        : [...before.tables.values()].filter((table) => table.request === id && !renewed.has(table.name));
      const full = new Set(own.flatMap((table) => table.blocks.slice(0, table.numFull)));
      const found = [...full].filter((number) => !taken.has(number));
      if (past.some((table) => table.host)) {
        const pairs = moves.filter((move) => move.kind === "in" && move.id === id)
          .map((move) => [onHost(move.source), " → block ", block(move.destination)]);
        say("swapped in", `${name(id)} is swapped in`, pairs.length ? ": " : "", few(pairs));
        if (found.length) say("hit", "still in the pool and not copied: ", blocks(found));
      } else if (past.length) {
        own.forEach((table) => sayParent(table, past));
      } else {
        if (!admitted.has(id)) say("admitted", `${name(id)} begins again`);
        const numTokens = found.length * run.block_size;
        if (found.length) say("hit", `prefix hit: ${name(id)} finds `, blocks(found), ` computed (${numTokens} tokens)`);
      }
    }
    for (const { source, destination, id } of copies.values()) { // after the forks that they come of
      const writer = [...tables.values()].find((t) => !t.host && t.request === id && t.blocks.includes(destination));
      const who = writer ? labelOf(writer, requests) : name(id);
      say("copy", "copy-on-write: block ", block(source), " → ", block(destination), ` for ${who}`);
    }
    const inUse = [...tables.values()].flatMap((table) => (table.host ? [] : table.blocks));
    const kept = new Set([...after.cached, ...inUse]);
    const evicted = before.cached.filter((number) => taken.has(number) || !kept.has(number));
    if (evicted.length) say("evicted", "evicted from the cache: ", blocks(evicted));
    return events;

    /* Where a table goes on from another one's blocks: a fork, or a beam that has a new parent. */
    function sayParent(table, past) {
      const origin = table.blocks.map((number) => copies.get(number)?.source ?? number);
      const continues = (other) => other.blocks.every((number, i) => number === origin[i]);
      const self = past.find((other) => other.name === table.name);
      const parent = self && continues(self) ? self : past.find(continues);
      if (!parent || parent === self) return;
      say("fork", `${labelOf(table, requests)} ${self ? "now continues" : "forks from"} ${labelOf(parent, requests)}`);
    }
  }

  /* Some items, with commas, and how many more there are. */
  function few(items, most = 6) {
    const shown = items.length > most ? items.slice(0, most - 1) : items;
    const parts = shown.flatMap((item, index) => (index ? [", ", item] : [item])).flat();
    return shown.length < items.length ? [...parts, ` and ${items.length - shown.length} more`] : parts;
  }

  const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

  /* What is computed in a step: single tokens of many, chunks of some. */
  function computed(state) {
    const rows = state.line.rows ?? [];
    if (!rows.length) return "nothing more is computed";
    const label = (name) => labelOf(state.tables.get(name), state.requests);
    const single = rows.filter(([, start, stop]) => stop - start === 1).map(([name]) => label(name));
    const chunks = rows.filter(([, start, stop]) => stop - start > 1);
    const parts = chunks.map(([name, start, stop]) => `${stop - start} tokens for ${label(name)}`);
    if (single.length) parts.unshift(`one token ${single.length > 1 ? "each " : ""}for ${few(single).join("")}`);
    return `computes ${few(parts).join("")}`;
  }

  globalThis.minipagedReplay = { NOTHING, replay, advance, survey, blockState, computed, labelOf, filled, textsIn, few, plural };
})();
