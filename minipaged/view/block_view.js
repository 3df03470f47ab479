/* The block view: draws what a trace of the paged KV cache (docs/trace.md) says, step by step.
 *
 * No framework, no network. `minipagedBlockView(element, traceText)` replays a recording, and `append(line)` adds a
 * line of a run that goes on; without a recording it waits for the first line. replay.js makes states of lines,
 * frame.js holds what stays the same, and a step changes only the cells that differ. scenes.js starts views by itself.
 */
(() => {
  "use strict";

  const { NOTHING, replay, advance, survey, blockState, computed, labelOf, filled, textsIn, few, plural } =
    globalThis.minipagedReplay;
  const { h, setText, paint, slotsOf, stripes, fit } = globalThis.minipagedStrips;
  const { frame, reserve, item, mostRows } = globalThis.minipagedFrame;
  const MOST_CELLS = 4096; // of a pool, drawn
  const MOST_STRIPS = 64; // blocks of a pool that shows its slots
  const MOST_SLOTS = 16; // of a block that shows them
  const MOST_WAITING = 8; // lanes of requests that wait
  const MOST_EVENTS = 6; // in words, a step
  const MOST_STATES = 5000; // of a run that goes on; older ones are forgotten
  const HINT = "Point at a block, or go to it with Tab and ↑ ↓, to follow it. A click keeps it.";

  function minipagedBlockView(root, traceText) {
    if (traceText !== undefined) return replayed(root, replay(traceText));
    let view = null; // from the first line on
    root.classList.add("block-view");
    root.replaceChildren(h("p.now", {}, "Waiting for the first step."));
    return {
      append: (line) => (view ? view.append(line) : (view = replayed(root, replay(line)))),
      play: () => view?.play(),
      pause: () => view?.pause(),
      goto: (step) => view?.goto(step),
    };
  }

  function replayed(root, { run, states }) {
    let index = 0; // of the state that is shown
    let timer = null;
    let highlighted = null; // the key of a block
    let pinned = null;
    let chosen = null; // the lane whose table is open
    let tour = null;
    const lanes = new Map(); // by key: their elements
    const extent = { pool: -1, host: -1 }; // the highest blocks that are ever used
    const size = run.block_size;
    const hasSlots = size <= MOST_SLOTS;

    const ui = frame(root, run);
    const arrows = globalThis.minipagedArrows(ui.body);

    // ---------------------------------------------------------------- one step

    function show(next) {
      index = Math.max(0, Math.min(states.length - 1, Math.trunc(next)));
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
      const scene = root.dataset.scene ? `scene=${encodeURIComponent(root.dataset.scene)}&` : "";
      ui.link.setAttribute("href", `#${scene}step=${index + 1}`);
      // A button that is disabled would lose the focus, and the arrow keys with it.
      ui.back.setAttribute("aria-disabled", index === 0);
      ui.forward.setAttribute("aria-disabled", index === states.length - 1);
    }

    const titleOf = (state) => `${state.step === null ? "After the last step" : `Step ${state.step}`}: ${computed(state)}.`;

    /* What else a step did: a kind and parts, of which some are blocks. */
    function eventsOf(state) {
      const more = state.events.length - MOST_EVENTS;
      const shown = state.events.slice(0, more > 0 ? MOST_EVENTS - 1 : MOST_EVENTS);
      return more > 0 ? [...shown, { kind: "more", parts: [`and ${more + 1} more`] }] : shown;
    }

    function showWords(state) {
      setText(ui.now, titleOf(state));
      ui.events.replaceChildren(...eventsOf(state).map(item));
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

    // ---------------------------------------------------------------- requests and their tables

    /* The lanes of a state: one per table, and one per request that waits. */
    function lanesOf(state) {
      const found = [];
      let numWaiting = 0;
      for (const request of state.requests.values()) {
        const tables = [...state.tables.values()].filter((table) => table.request === request.id);
        tables.sort((a, b) => a.name.length - b.name.length || (a.name < b.name ? -1 : 1));
        tables.forEach((table) => found.push({ key: `table ${table.name}`, request, table }));
        if (!tables.length && ++numWaiting <= MOST_WAITING) found.push({ key: `request ${request.id}`, request });
      }
      return { found, hidden: numWaiting - MOST_WAITING };
    }

    function showLanes(state, seen, events) {
      const { found, hidden } = lanesOf(state);
      const rows = new Map((state.line.rows ?? []).map(([name, start, stop]) => [name, stop - start]));
      const keys = new Set(found.map((lane) => lane.key));
      const open = keys.has(chosen) ? chosen : found.find((lane) => lane.table)?.key;
      for (const [key, lane] of lanes) if (!keys.has(key)) lane.remove(), lanes.delete(key);
      found.forEach((each, place) => {
        if (!lanes.has(each.key)) lanes.set(each.key, newLane(each.key));
        const lane = lanes.get(each.key);
        if (ui.lanes.children[place] !== lane) ui.lanes.insertBefore(lane, ui.lanes.children[place] ?? null);
        lane.toggleAttribute("data-selected", each.key === open);
        lane.parts.chip.setAttribute("aria-expanded", each.key === open);
        showLane(lane, each, state, seen, events, rows.get(each.table?.name) ?? 0);
      });
      setText(ui.more, hidden > 0 ? `and ${plural(hidden, "request")} more in line` : found.length ? "" : "No request now.");
    }

    function newLane(key) {
      const lane = h("li.lane");
      const names = ["status", "tokens", "prompt"];
      lane.parts = Object.fromEntries(names.map((name) => [name, h(`span.${name}`)]));
      lane.parts.chip = h("button.chip", { type: "button", tabindex: "-1" });
      lane.parts.chip.addEventListener("click", () => ((chosen = key), show(index)));
      lane.append(h("div.lane-head", {}, lane.parts.chip, ...names.map((name) => lane.parts[name])));
      lane.append(h("div.caption", { "aria-hidden": "true" }, h("span", {}, "logical"), h("span", {}, "tokens in their slots"), h("span", {}, "physical")));
      lane.append((lane.parts.cells = h("ol.cells", { role: "list" })));
      lane.parts.cells.addEventListener("scroll", arrows.redraw);
      return lane;
    }

    function showLane(lane, { request, table }, state, seen, events, numNew) {
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
      setText(prompt, about.filter(Boolean).join(" · "));
      cells.setAttribute("aria-label", `Block table of ${name}`);
      const list = fit(cells, table ? table.blocks.length : 0);
      const isOpen = hasSlots && lane.hasAttribute("data-selected");
      (table?.blocks ?? []).forEach((block, i) => {
        const key = (table.host ? "h" : "") + block;
        const num = filled(table, i, size);
        const { count } = blockState(key, seen);
        paint(list[i], {
          key,
          small: `${i}`,
          slots: isOpen ? slotsOf(textsIn(run, state, table, i), num, size) : null,
          note: num < size ? `${num}/${size}` : "",
          mark: key,
          badge: count > 1 ? `×${count}` : "",
          said: `logical block ${i} of ${name} is ${inWords(key, seen, state)}`,
          fill: num / size,
          hues: [request.hue],
          kind: count > 1 ? "shared" : "used",
          event: events.get(key),
        });
      });
      // The newest blocks are what a reader wants to see.
      if (lane.numBlocks !== list.length) cells.scrollTo(1e6, 1e6);
      lane.numBlocks = list.length;
    }

    /* What a request that waits has before it. */
    function toCompute({ prompt_tokens, preempted, numToCompute }) {
      if (!preempted) return plural(prompt_tokens, "prompt token");
      return numToCompute ? `${plural(numToCompute, "token")} to compute` : "to be computed again";
    }

    // ---------------------------------------------------------------- the pool

    /* Of a large pool, blocks beyond the last that was ever used are left out. */
    function showPool(list, numBlocks, prefix, state, seen, events) {
      const most = prefix ? extent.host : extent.pool;
      const count = Math.min(MOST_CELLS, numBlocks, numBlocks <= 64 ? numBlocks : Math.max(prefix ? 0 : 64, most + 1));
      const cells = fit(list, count);
      const isStrips = hasSlots && count <= MOST_STRIPS;
      list.dataset.size = isStrips ? "large" : count <= 256 ? "medium" : "small";
      const columns = count <= 16 && !ui.hostPool ? 1 : count <= 40 ? 2 : 3;
      list.style.setProperty("--bv-rows", Math.ceil(count / columns));
      list.style.setProperty("--bv-columns", columns);
      list.dataset.columns = columns;
      for (let block = 0; block < count; block++) {
        const key = prefix + block;
        const { kind } = blockState(key, seen);
        const look = { key, small: `${block}`, mark: kind === "cached" ? "c" : "", kind, fill: 1, hues: [], slots: null };
        Object.assign(look, { said: inWords(key, seen, state), event: events.get(key) });
        if (isStrips) look.slots = slotsOf([], 0, size);
        if (isStrips && kind === "cached") look.slots = slotsOf(state.remembered.get(block) ?? [], size, size);
        if (kind === "used") Object.assign(look, usedLook(seen.users.get(key), state, isStrips));
        paint(cells[block], look);
      }
      const left = numBlocks - count;
      const others = count ? `and ${plural(left, "block")} more` : plural(left, "block");
      setText(list.nextSibling, left ? `${others}, ${count < MOST_CELLS ? "never used" : "not drawn"}` : "");
    }

    function usedLook(uses, state, isStrip) {
      const owners = [...new Set(uses.map((use) => state.requests.get(use.table.request)))];
      const names = owners.map((owner) => owner.label);
      const fullest = uses.reduce((most, use) => (use.filled > most.filled ? use : most));
      const fill = fullest.filled / size;
      const slots = isStrip ? slotsOf(textsIn(run, state, fullest.table, fullest.index), fullest.filled, size) : null;
      const hues = owners.slice(0, 4).map((owner) => owner.hue);
      if (uses.length === 1) return { kind: "used", mark: labelOf(uses[0].table, state.requests), fill, hues, slots };
      const mark = names.length > 2 ? `${names[0]}+` : names.join("");
      return { kind: "shared", mark, badge: `×${uses.length}`, fill, hues, slots };
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
      drawArrows();
      if (key === null) return setText(ui.about, HINT);
      for (const element of root.querySelectorAll(`:not(.bv-ghost *)[data-block="${key}"]`)) element.classList.add("bv-lit");
      const text = inWords(key, survey(run, states[index]), states[index]);
      setText(ui.about, `${text[0].toUpperCase()}${text.slice(1)}.`);
    }

    /* From the open table to the pool; the newest block's arrow is the one that a narrow view shows. */
    function drawArrows() {
      const cells = ui.lanes.querySelector(".bv-lane[data-selected] .bv-cells")?.children ?? [];
      const pairs = [...cells].map((from, i) => {
        const key = from.dataset.block;
        const to = (key[0] === "h" ? ui.hostPool : ui.pool).children[Number(key.replace("h", ""))];
        const hue = from.style.getPropertyValue("--edge").match(/\d+/)?.[0] ?? 0;
        return { id: `${from.closest(".bv-lane").parts.chip.textContent} ${i} ${key}`, from: from.mark, to, hue, isNew: i === cells.length - 1 };
      });
      const isLit = (to) => to.matches(".bv-lit, .bv-pointed");
      arrows.draw(pairs.filter(({ to }) => to), isLit);
    }

    /* Tab reaches a group of cells once; the arrows up and down go on from there. */
    function keepOneTabStop(group, wanted) {
      if (!group) return;
      const stops = group.querySelectorAll(':is(.bv-cell, .bv-chip)[tabindex="0"]');
      const stop = wanted ?? stops[0] ?? group.querySelector(".bv-cell, .bv-chip");
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
    ui.lanes.addEventListener("scroll", arrows.redraw);
    ui.pool.addEventListener("scroll", arrows.redraw);
    new ResizeObserver(measure).observe(ui.body);

    /* Texts stand in the slots of a pool where a slot has room for some letters. */
    function measure() {
      for (const list of [ui.pool, ui.hostPool].filter(Boolean)) {
        const slots = list.querySelector(".bv-slots");
        list.toggleAttribute("data-texts", Boolean(slots) && slots.clientWidth / size >= 30);
      }
      arrows.redraw();
    }

    // ---------------------------------------------------------------- playing

    function play() {
      if (timer !== null) return;
      tour?.leave();
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
        if (index < states.length - 1 && root.isConnected) tick();
        else pause();
      }, 1000 / Number(ui.speed.value));
    }

    const walk = (next) => (tour?.leave(), pause(), show(next));
    const toggle = () => (timer === null ? play() : pause());
    ui.play.addEventListener("click", toggle);
    ui.back.addEventListener("click", () => walk(index - 1));
    ui.forward.addEventListener("click", () => walk(index + 1));
    ui.range.addEventListener("input", () => walk(Number(ui.range.value) - 1));
    root.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || event.target === ui.speed) return;
      const isButton = event.target.tagName === "BUTTON";
      const cell = event.target.closest(".bv-cell, .bv-chip");
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
      const cells = [...group.querySelectorAll(".bv-cell, .bv-chip")];
      const next = cells[cells.indexOf(cell) + by];
      if (!next) return;
      keepOneTabStop(group, next);
      next.focus();
    }

    // ---------------------------------------------------------------- a run that goes on

    /* One more line. Whoever looks at the last step stays at the last. */
    function append(line) {
      const follows = index >= states.length - 1;
      states.push(advance(run, states.at(-1) ?? NOTHING, JSON.parse(line)));
      if (states.length > MOST_STATES) states.shift(), (index = Math.max(0, index - 1));
      makeRoom(states.at(-1));
      show(follows ? states.length - 1 : index);
    }

    /* Note the highest blocks that are ever used, since pools are drawn as far as that, and what must fit in. */
    function makeRoom(state) {
      for (const table of state.tables.values()) {
        const pool = table.host ? "host" : "pool";
        for (const block of table.blocks) if (block > extent[pool]) extent[pool] = block;
      }
      for (const block of state.cached) if (block > extent.pool) extent.pool = block;
      const rows = Math.max(0, ...[...state.tables.values()].map((table) => table.blocks.length));
      const words = [titleOf(state), eventsOf(state)];
      reserve(ui, { lanes: lanesOf(state).found.length, rows: Math.min(rows, mostRows), words });
    }

    /* Begin a guided tour with cards that were made for this recording. */
    function guide(cards) {
      const goto = (step, table) => {
        if (table) chosen = `table ${table}`;
        pause();
        show(step - 1);
      };
      tour = globalThis.minipagedTour({ root, stage: ui.stage, goto, index: () => index, redraw: drawArrows }, ui.tour, cards);
      tour.open(0);
    }

    states.forEach(makeRoom);
    show(0);
    highlight(null);
    return { append, play, pause, guide, goto: (step) => walk(step - 1) };
  }

  globalThis.minipagedBlockView = minipagedBlockView;
})();
