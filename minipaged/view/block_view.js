/* The block view: replays a trace of the paged KV cache (docs/trace.md), step by step.
 *
 * No framework, no network. replay.js, which comes before it, makes states of a trace;
 * `minipagedBlockView(element, traceText)` draws them, and touches only what has changed.
 * An element of class "block-view" with data-trace="#id of a script" or a URL starts by itself.
 */
(() => {
  "use strict";

  const { NOTHING, replay, advance, survey, blockState, computed, labelOf, filled, few, plural } =
    globalThis.minipagedReplay;
  const MOST_CELLS = 4096; // of a pool, drawn
  const MOST_WAITING = 8; // lanes of requests that wait
  const MOST_EVENTS = 12; // in words, a step
  const HINT = "Point at a block, or go to it with Tab and ↑ ↓, to follow it; a click keeps it.";
  const SPEEDS = [0.5, 1, 2, 5, 10, 20]; // steps a second

  // ------------------------------------------------------------------ drawing

  /* An element: h("p.name", {attribute: value}, ...children). Texts become text nodes, never markup. */
  function h(tag, attributes = {}, ...children) {
    const [name, ...classes] = tag.split(".");
    const element = document.createElement(name);
    if (classes.length) element.className = classes.map((one) => `bv-${one}`).join(" ");
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  /* Set a text, and leave the element alone where it has it already. */
  function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  /* A cell of a table or a pool: two short texts for the eye, a sentence for a screen reader. */
  function newCell() {
    const cell = h("li.cell", { tabindex: "-1" });
    cell.small = h("span.small", { "aria-hidden": "true" });
    cell.mark = h("span.mark", { "aria-hidden": "true" });
    cell.said = h("span.said");
    cell.append(cell.small, cell.mark, cell.said);
    return cell;
  }

  /* `look` is {key, small, mark, badge, said, fill, hues, kind, event}; what stands there already is not written. */
  function paint(cell, look) {
    const signature = Object.values(look).join("|");
    if (cell.signature === signature) return;
    cell.signature = signature;
    cell.dataset.block = look.key;
    cell.dataset.kind = look.kind;
    cell.dataset.event = look.event ?? "";
    setText(cell.small, look.small);
    setText(cell.mark, look.mark);
    setText(cell.said, look.said);
    cell.mark.dataset.badge = look.badge ?? "";
    cell.style.setProperty("--fill", `${Math.round(look.fill * 100)}%`);
    cell.style.setProperty("--edge", look.hues.length ? `var(--bv-hue-${look.hues[0]})` : "");
    cell.style.setProperty("--paint", stripes(look.hues));
  }

  /* The colours of up to four owners, side by side. */
  function stripes(hues) {
    const part = 100 / hues.length;
    const stops = hues.map((hue, i) => `var(--bv-fill-${hue}) ${i * part}% ${(i + 1) * part}%`);
    return hues.length ? `linear-gradient(135deg, ${stops.join(", ")})` : "none";
  }

  /* Fit a list to as many cells as needed. */
  function fit(list, count) {
    while (list.children.length < count) list.append(newCell());
    while (list.children.length > count) list.lastChild.remove();
    return list.children;
  }

  function minipagedBlockView(root, traceText) {
    const { run, states } = replay(traceText);
    let index = 0; // of the state that is shown
    let timer = null;
    let highlighted = null; // the key of a block
    let pinned = null;
    const lanes = new Map(); // by key: their elements
    const size = run.block_size;

    const ui = build(root, run);

    // ---------------------------------------------------------------- one step

    function show(next) {
      index = Math.max(0, Math.min(states.length - 1, next));
      const state = states[index];
      if (!state) return setText(ui.now, "The trace has no step yet.");
      const hadFocus = root.contains(document.activeElement);
      const seen = survey(run, state);
      const events = new Map(); // key of a block -> how it took part in this step
      for (const [kind, source, destination] of state.line.moves ?? []) {
        events.set((kind === "in" ? "h" : "") + source, "source");
        events.set((kind === "out" ? "h" : "") + destination, "destination");
      }
      showWords(state);
      showCounts(state, seen.counts);
      showLanes(state, seen, events);
      showPool(ui.pool, run.num_blocks, "", state, seen, events);
      if (ui.hostPool) showPool(ui.hostPool, run.num_host_blocks, "h", state, seen, events);
      for (const list of [ui.pool, ui.lanes, ui.hostPool]) keepOneTabStop(list);
      if (hadFocus && !root.contains(document.activeElement)) root.focus(); // the cell that had it is gone
      highlight(highlighted);
      ui.range.max = states.length;
      ui.range.value = index + 1;
      ui.range.setAttribute("aria-valuetext", state.step === null ? "after the last step" : `step ${state.step}`);
      // A button that is disabled would lose the focus, and the arrow keys with it.
      ui.back.setAttribute("aria-disabled", index === 0);
      ui.forward.setAttribute("aria-disabled", index === states.length - 1);
    }

    function showWords(state) {
      const title = state.step === null ? "After the last step" : `Step ${state.step}`;
      setText(ui.now, `${title}: ${computed(state)}.`);
      const shown = state.events.slice(0, MOST_EVENTS).map(({ kind, parts }) => {
        const texts = parts.map((part) => (part.key ? h("span.ref", { "data-block": part.key }, part.text) : part));
        return h("li", { "data-kind": kind }, ...texts);
      });
      const more = state.events.length - shown.length;
      if (more > 0) shown.push(h("li", {}, `and ${more} more`));
      ui.events.replaceChildren(...shown);
    }

    function showCounts(state, counts) {
      const slots = counts.used * size;
      const mebibytes = (blocks) => `${((blocks * run.bytes_per_block) / 2 ** 20).toFixed(1)} MiB`;
      setText(ui.counts.step, `${state.step ?? "end"} of ${states.at(-1).step ?? states.length - 1}`);
      setText(ui.counts.used, `${counts.used} of ${run.num_blocks}`);
      setText(ui.counts.free, `${counts.free}`);
      setText(ui.counts.cached, `${counts.cached}`);
      setText(ui.counts.shared, `${counts.shared}`);
      setText(ui.counts.saved, counts.saved ? `${counts.saved} · ${mebibytes(counts.saved)}` : "0");
      setText(ui.counts.waste, `${plural(counts.waste, "slot")} · ${slots ? Math.round((counts.waste / slots) * 100) : 0} %`);
      if (ui.counts.host) setText(ui.counts.host, `${counts.host} of ${run.num_host_blocks}`);
    }

    function showLanes(state, seen, events) {
      const wanted = [];
      let numWaiting = 0;
      for (const request of state.requests.values()) {
        const tables = [...state.tables.values()].filter((table) => table.request === request.id);
        tables.sort((a, b) => a.name.length - b.name.length || (a.name < b.name ? -1 : 1));
        tables.forEach((table, i) => wanted.push({ key: `table ${table.name}`, request, table, isFirst: i === 0 }));
        if (!tables.length && ++numWaiting <= MOST_WAITING) wanted.push({ key: `request ${request.id}`, request, isFirst: true });
      }
      const rows = new Map((state.line.rows ?? []).map(([name, start, stop]) => [name, stop - start]));
      const keys = new Set(wanted.map((lane) => lane.key));
      for (const [key, lane] of lanes) if (!keys.has(key)) lane.remove(), lanes.delete(key);
      wanted.forEach((each, place) => {
        if (!lanes.has(each.key)) lanes.set(each.key, newLane());
        const lane = lanes.get(each.key);
        if (ui.lanes.children[place] !== lane) ui.lanes.insertBefore(lane, ui.lanes.children[place] ?? null);
        showLane(lane, each, state, seen, events, rows.get(each.table?.name) ?? 0);
      });
      const hidden = numWaiting - MOST_WAITING;
      setText(ui.more, hidden > 0 ? `and ${plural(hidden, "request")} more in line` : wanted.length ? "" : "No request now.");
    }

    function newLane() {
      const lane = h("li.lane");
      const names = ["chip", "status", "tokens", "prompt"];
      lane.parts = Object.fromEntries(names.map((name) => [name, h(`span.${name}`)]));
      lane.append(h("div.lane-head", {}, ...Object.values(lane.parts)));
      lane.append((lane.parts.cells = h("ol.cells", { role: "list" })));
      return lane;
    }

    function showLane(lane, { request, table, isFirst }, state, seen, events, numNew) {
      const { chip, status, tokens, prompt, cells } = lane.parts;
      const name = table ? labelOf(table, state.requests) : request.label;
      lane.dataset.status = !table ? "waiting" : table.host ? "swapped out" : "running";
      chip.style.setProperty("--edge", `var(--bv-hue-${request.hue})`);
      chip.style.setProperty("--paint", stripes([request.hue]));
      const about = [request.id === request.label ? "" : request.id, request.prompt.slice(0, 200)];
      setText(chip, name);
      setText(status, lane.dataset.status);
      const now = numNew ? `, ${numNew} now` : "";
      setText(tokens, table ? plural(table.tokens, "token") + now : toCompute(request));
      setText(prompt, isFirst ? about.filter(Boolean).join(" · ") : "");
      cells.setAttribute("aria-label", `Block table of ${name}`);
      const list = fit(cells, table ? table.blocks.length : 0);
      (table?.blocks ?? []).forEach((block, i) => {
        const key = (table.host ? "h" : "") + block;
        const slots = filled(table, i, size);
        const { count } = blockState(key, seen);
        paint(list[i], {
          key,
          small: slots < size ? `${i} · ${slots}/${size}` : `${i}`,
          mark: key,
          badge: count > 1 ? `×${count}` : "",
          said: `logical block ${i} of ${name} is ${inWords(key, seen, state)}`,
          fill: slots / size,
          hues: [request.hue],
          kind: count > 1 ? "shared" : "used",
          event: events.get(key),
        });
      });
    }

    /* What a request that waits has before it. */
    function toCompute({ prompt_tokens, preempted, numToCompute }) {
      if (!preempted) return plural(prompt_tokens, "prompt token");
      return numToCompute ? `${plural(numToCompute, "token")} to compute` : "to be computed again";
    }

    /* Of a large pool, blocks beyond the last that was ever used are left out. */
    function showPool(list, numBlocks, prefix, state, seen, events) {
      const extent = prefix ? ui.extent.host : ui.extent.pool;
      const count = Math.min(MOST_CELLS, numBlocks, numBlocks <= 64 ? numBlocks : Math.max(prefix ? 0 : 64, extent + 1));
      const cells = fit(list, count);
      list.dataset.size = count <= 64 ? "large" : count <= 256 ? "medium" : "small";
      if (list.dataset.size === "small") root.dataset.dense = "";
      for (let block = 0; block < count; block++) {
        const key = prefix + block;
        const { kind } = blockState(key, seen);
        const look = { key, small: `${block}`, mark: kind === "cached" ? "c" : "", kind, fill: 1, hues: [] };
        Object.assign(look, { said: inWords(key, seen, state), event: events.get(key) });
        if (kind === "used") Object.assign(look, usedLook(seen.users.get(key), state));
        paint(cells[block], look);
      }
      const left = numBlocks - count;
      const others = count ? `and ${plural(left, "block")} more` : plural(left, "block");
      setText(list.nextSibling, left ? `${others}, ${count < MOST_CELLS ? "never used" : "not drawn"}` : "");
    }

    function usedLook(uses, state) {
      const owners = [...new Set(uses.map((use) => state.requests.get(use.table.request)))];
      const names = owners.map((owner) => owner.label);
      const fill = Math.max(...uses.map((use) => use.filled)) / size;
      const hues = owners.slice(0, 4).map((owner) => owner.hue);
      if (uses.length === 1) return { kind: "used", mark: labelOf(uses[0].table, state.requests), fill, hues };
      const mark = names.length > 2 ? `${names[0]}+` : names.join("");
      return { kind: "shared", mark, badge: `×${uses.length}`, fill, hues };
    }

    /* All there is to say about a block. */
    function inWords(key, seen, state) {
      const name = key[0] === "h" ? `host block ${key.slice(1)}` : `block ${key}`;
      const { kind, count } = blockState(key, seen);
      if (kind === "free") return `${name}: free`;
      if (kind === "cached") return `${name}: cached, used by nobody, number ${seen.turns.get(key)} to be evicted`;
      const uses = seen.users.get(key);
      const places = few(uses.map((use) => `${labelOf(use.table, state.requests)} (its ${use.index})`)).join("");
      const slots = Math.max(...uses.map((use) => use.filled));
      return `${name}: ${count > 1 ? "shared by" : "used by"} ${places}; ${slots} of ${size} slots filled`;
    }

    // ---------------------------------------------------------------- highlighting

    /* Mark a block wherever it stands, and say what it is. */
    function highlight(key) {
      for (const element of root.querySelectorAll(".bv-lit")) element.classList.remove("bv-lit");
      highlighted = key;
      if (key === null) return setText(ui.about, HINT);
      for (const element of root.querySelectorAll(`[data-block="${key}"]`)) element.classList.add("bv-lit");
      const text = inWords(key, survey(run, states[index]), states[index]);
      setText(ui.about, `${text[0].toUpperCase()}${text.slice(1)}.`);
    }

    /* Tab reaches a group of cells once; the arrows up and down go on from there. */
    function keepOneTabStop(group, chosen) {
      if (!group) return;
      const stops = group.querySelectorAll('.bv-cell[tabindex="0"]');
      const stop = chosen ?? stops[0] ?? group.querySelector(".bv-cell");
      for (const other of stops) if (other !== stop) other.tabIndex = -1;
      if (stop) stop.tabIndex = 0;
    }

    const keyAt = (event) => event.target.closest?.("[data-block]")?.dataset.block ?? null;
    root.addEventListener("pointerover", (event) => highlight(keyAt(event) ?? pinned));
    root.addEventListener("pointerleave", () => highlight(pinned));
    root.addEventListener("focusin", (event) => {
      if (keyAt(event) !== null) highlight(keyAt(event));
    });
    root.addEventListener("focusout", () => highlight(pinned));
    root.addEventListener("click", (event) => {
      const key = keyAt(event);
      if (key === null) return;
      pinned = pinned === key ? null : key;
      highlight(pinned ?? key);
    });

    // ---------------------------------------------------------------- playing

    function play() {
      if (timer !== null) return;
      if (index >= states.length - 1) show(0);
      ui.words.setAttribute("aria-live", "off"); // nobody can listen that fast
      setText(ui.play, "Pause");
      tick();
    }

    function pause() {
      clearTimeout(timer);
      timer = null;
      ui.words.setAttribute("aria-live", "polite");
      setText(ui.play, "Play");
    }

    function tick() {
      timer = setTimeout(() => {
        show(index + 1);
        if (index < states.length - 1) tick();
        else pause();
      }, 1000 / Number(ui.speed.value));
    }

    const walk = (next) => (pause(), show(next));
    const toggle = () => (timer === null ? play() : pause());
    ui.play.addEventListener("click", toggle);
    ui.back.addEventListener("click", () => walk(index - 1));
    ui.forward.addEventListener("click", () => walk(index + 1));
    ui.range.addEventListener("input", () => walk(Number(ui.range.value) - 1));
    root.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || event.target === ui.speed) return;
      const isButton = event.target.tagName === "BUTTON";
      const cell = event.target.closest(".bv-cell");
      const actions = {
        " ": isButton ? null : toggle,
        ArrowLeft: () => walk(index - 1),
        ArrowRight: () => walk(index + 1),
        Home: () => walk(0),
        End: () => walk(states.length - 1),
        ArrowUp: cell && (() => moveFocus(cell, -1)),
        ArrowDown: cell && (() => moveFocus(cell, 1)),
        Escape: cell && (() => (cell.blur(), root.focus())),
      };
      if (!actions[event.key]) return;
      event.preventDefault();
      actions[event.key]();
    });

    function moveFocus(cell, by) {
      const group = cell.closest("[data-group]");
      const cells = [...group.querySelectorAll(".bv-cell")];
      const next = cells[cells.indexOf(cell) + by];
      if (!next) return;
      keepOneTabStop(group, next);
      next.focus();
    }

    /* One more line of a run that is still going on. Whoever looks at the last step stays at the last. */
    function append(line) {
      const follows = index >= states.length - 1;
      states.push(advance(run, states.at(-1) ?? NOTHING, JSON.parse(line)));
      stretch(states.at(-1));
      show(follows ? states.length - 1 : index);
    }

    /* Note the highest blocks that are ever used: pools are drawn as far as that. */
    function stretch(state) {
      for (const table of state.tables.values()) {
        const pool = table.host ? "host" : "pool";
        for (const block of table.blocks) if (block > ui.extent[pool]) ui.extent[pool] = block;
      }
      for (const block of state.cached) if (block > ui.extent.pool) ui.extent.pool = block;
    }

    states.forEach(stretch);
    show(0);
    highlight(null);
    return { append, play, pause, goto: (step) => walk(step - 1) };
  }

  /* The frame: all that stays the same while steps come and go. */
  function build(root, run) {
    const button = (text, label) => h("button", { type: "button", ...(label && { "aria-label": label, title: label }) }, text);
    const ui = { extent: { pool: -1, host: -1 }, counts: {} };
    ui.back = button("‹", "Step back");
    ui.play = button("Play");
    ui.forward = button("›", "Step forward");
    ui.range = h("input", { type: "range", min: 1, max: 1, value: 1, "aria-label": "Step" });
    ui.speed = h("select", { "aria-label": "Steps a second" }, ...SPEEDS.map((n) => h("option", { value: n }, `${n}/s`)));
    ui.speed.value = "1";
    ui.now = h("p.now");
    ui.events = h("ul.events");
    ui.words = h("div.words", { "aria-live": "polite", "aria-atomic": "true" }, ui.now, ui.events);
    const names = { step: "step", used: "blocks used", free: "free", cached: "cached", shared: "shared" };
    Object.assign(names, { saved: "saved by sharing", waste: "waste", ...(run.num_host_blocks && { host: "on the host" }) });
    const counts = Object.entries(names).map(([key, name]) => h("div", {}, h("dt", {}, name), (ui.counts[key] = h("dd"))));
    ui.lanes = h("ul.lanes", { role: "list", "data-group": "", "aria-label": "Requests" });
    ui.more = h("p.more");
    ui.pool = h("ol.pool", { role: "list", "data-group": "", "aria-label": "The pool" });
    ui.about = h("p.about");
    const legend = ["used A", "shared A×2", "cached c", "free", "from", "to"].map((entry) => {
      const [kind, mark = ""] = entry.split(" ");
      const event = { from: "source", to: "destination" }[kind];
      const text = { from: "copied from", to: "copied to" }[kind] ?? kind;
      const looks = { "data-kind": event ? "used" : kind, "data-event": event ?? "", "aria-hidden": "true" };
      return h("li", {}, h("span.sample", looks, mark), text);
    });
    const sizes = `${plural(run.num_blocks, "block")} of ${plural(run.block_size, "slot")}`;
    const pools = h("section.side", {}, h("p.heading", {}, `The pool: ${sizes}`), ui.pool, h("p.more"));
    if (run.num_host_blocks) {
      ui.hostPool = h("ol.pool", { role: "list", "data-group": "", "aria-label": "The host pool" });
      pools.append(h("p.heading", {}, `The host pool: ${plural(run.num_host_blocks, "block")}`), ui.hostPool, h("p.more"));
    }
    pools.append(h("ul.legend", { "aria-label": "Signs" }, ...legend), ui.about);
    root.classList.add("block-view");
    root.tabIndex = 0;
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", "Block view: a run of the paged KV cache, replayed");
    root.replaceChildren(
      h("div.controls", {}, ui.back, ui.play, ui.forward, ui.range, ui.speed),
      ui.words,
      h("dl.counts", {}, ...counts),
      h("div.body", {}, h("section.main", {}, h("p.heading", {}, "Requests and their block tables"), ui.lanes, ui.more), pools),
      h("p.keys", {}, `${run.model}, minipaged ${run.minipaged} · Space plays, ← → step, Home and End jump.`),
    );
    return ui;
  }

  // ------------------------------------------------------------------ starting by itself

  /* Start every element of class block-view that names a trace and has not been started. */
  function start() {
    for (const element of document.querySelectorAll(".block-view[data-trace]:not([data-started])")) {
      element.dataset.started = "";
      const source = element.dataset.trace;
      load(source).then((trace) => {
        element.blockView = minipagedBlockView(element, trace);
        if (element.dataset.step) element.blockView.goto(Number(element.dataset.step));
      }).catch((error) => {
        element.replaceChildren(h("p.error", { role: "alert" }, `The block view can't show ${source}: ${error.message}`));
      });
    }
  }

  /* The text of a trace: "#id" of a script in this page, or a URL. */
  async function load(source) {
    if (source[0] === "#") {
      const script = document.getElementById(source.slice(1));
      if (!script) throw new Error("the page has no such element");
      return script.textContent;
    }
    const response = await fetch(source);
    if (!response.ok) throw new Error(`the server answers ${response.status}`);
    return response.text();
  }

  minipagedBlockView.start = start;
  globalThis.minipagedBlockView = minipagedBlockView;
  if (globalThis.document$) document$.subscribe(start); // mkdocs-material tells so when it swaps a page
  else if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
