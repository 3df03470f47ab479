/* The frame of a block view: all that stays the same while steps come and go.
 *
 * Its height stays the same, too. The lists of requests get the height that the largest of the states needs, and the
 * words of the longest states stand behind the words of the shown one, invisible, and keep their room.
 */
(() => {
  "use strict";

  const { plural } = globalThis.minipagedReplay;
  const { h } = globalThis.minipagedStrips;
  const SPEEDS = [0.5, 1, 2, 5, 10, 20]; // steps a second
  const [LANE, ROW, CAPTION] = [34, 26, 26]; // pixels: as in block_view.css
  const [LEAST, MOST] = [220, 560]; // pixels of the lists of requests
  const GHOSTS = 6;
  const LEGEND = [
    [{ kind: "used", note: "2/4", slots: [1, 1, 0, 0] }, "two of four slots hold a token"],
    [{ kind: "shared", mark: "A", badge: "×4", slots: [1, 1, 1, 1] }, "four tables of A name this block"],
    [{ kind: "cached", mark: "c", slots: [1, 1, 1, 1] }, "cached: used by nobody, a prompt may find it"],
    [{ kind: "free", slots: [0, 0, 0, 0] }, "free"],
    [{ kind: "used", event: "source", slots: [1, 1, 0, 0] }, "copied from"],
    [{ kind: "used", event: "destination", slots: [1, 1, 0, 0] }, "copied to"],
  ];
  let numFrames = 0;

  function minipagedFrame(root, run) {
    const button = (text, label) => h("button", { type: "button", ...(label && { "aria-label": label, title: label }) }, text);
    const id = `block-view-${++numFrames}`;
    const ui = { counts: {}, needed: 0, ghosts: [] };
    ui.back = button("‹", "Step back");
    ui.play = button("Play");
    ui.forward = button("›", "Step forward");
    ui.range = h("input", { type: "range", min: 1, max: 1, value: 1, "aria-label": "Step" });
    ui.speed = h("select", { "aria-label": "Steps a second" }, ...SPEEDS.map((n) => h("option", { value: n }, `${n}/s`)));
    ui.speed.value = "1";
    ui.tour = h("button", { type: "button", hidden: "", "aria-pressed": "false" }, "Tour");
    ui.link = h("a.link", { href: "#", title: "A link to this step" }, "Link");
    ui.now = h("p.now");
    ui.events = h("ul.events");
    ui.words = h("div.words", { "aria-live": "polite", "aria-atomic": "true" }, ui.now, ui.events);
    ui.stage = h("div.stage", {}, ui.words);
    const names = { step: "step", used: "blocks used", free: "free", cached: "cached", shared: "shared" };
    Object.assign(names, { saved: "saved by sharing", waste: "waste", ...(run.num_host_blocks && { host: "on the host" }) });
    const counts = Object.entries(names).map(([key, name]) => h("div", {}, h("dt", {}, name), (ui.counts[key] = h("dd"))));
    ui.lanes = h("ul.lanes", { role: "list", "data-group": "", "aria-label": "Requests", id: `${id}-tables` });
    ui.more = h("p.more");
    ui.about = h("p.about");
    ui.body = h("div.body", {},
      h("section.main", {}, h("p.heading", {}, "Block tables"), ui.lanes, ui.more), pools(ui, run, `${id}-pool`));
    const keys = h("span.keyboard", {}, " · Space plays, ← → step, Home and End jump.");
    ui.end = h("p.keys", { id: `${id}-end`, tabindex: "-1" }, `${run.model}, minipaged ${run.minipaged}`, keys);
    root.classList.add("block-view");
    root.tabIndex = 0;
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", "Block view: a run of the paged KV cache, replayed");
    root.replaceChildren(
      h("p.skips", {}, skip(ui.lanes, "Skip to the block tables"), skip(ui.pool, "Skip to the pool"), skip(ui.end, "Skip the block view")),
      h("div.controls", {}, ui.back, ui.play, ui.forward, ui.range, ui.speed, ui.tour, ui.link),
      ui.stage, ui.body, ui.about, legend(), h("dl.counts", {}, ...counts), ui.end,
    );
    return ui;
  }

  function pools(ui, run, id) {
    const sizes = `${plural(run.num_blocks, "physical block")} of ${plural(run.block_size, "slot")}`;
    ui.pool = h("ol.pool", { role: "list", "data-group": "", "aria-label": "The pool", id });
    const section = h("section.side", {}, h("p.heading", {}, `The pool: ${sizes}`), ui.pool, h("p.more"));
    if (run.num_host_blocks) {
      ui.hostPool = h("ol.pool", { role: "list", "data-group": "", "aria-label": "The host pool" });
      section.append(h("p.heading", {}, `The host pool: ${plural(run.num_host_blocks, "block")}`), ui.hostPool, h("p.more"));
    }
    return section;
  }

  /* A link past what comes before a part. It moves the focus and leaves the address alone. */
  function skip(target, text) {
    const link = h("a", { href: `#${target.id}` }, text);
    link.addEventListener("click", (event) => {
      event.preventDefault();
      (target.querySelector('[tabindex="0"]') ?? target).focus();
    });
    return link;
  }

  function legend() {
    const entries = LEGEND.map(([{ kind, note, mark, badge = "", event = "", slots }, text]) => {
      const strip = h("span.slots", {}, ...slots.map((full) => h("span.slot", full ? { "data-full": "" } : {})));
      const sample = h("span.sample", { "data-kind": kind, "data-event": event, "data-strip": "", "aria-hidden": "true" }, strip);
      if (note) sample.append(h("span.note", {}, note));
      if (mark) sample.append(h("span.mark", { "data-badge": badge }, mark));
      const sign = note ?? (badge && `${mark} ${badge}`);
      return h("li", {}, sample, ...(sign ? [h("span.said", {}, `${sign}: `)] : []), text);
    });
    const arrow = h("span.sample.arrow", { "aria-hidden": "true" }, "→");
    return h("ul.legend", { "aria-label": "Signs" }, h("li", {}, arrow, "from a logical block to its physical block"), ...entries);
  }

  /* An event in words; its blocks can be pointed at. */
  const item = ({ kind, parts }) =>
    h("li", { "data-kind": kind }, ...parts.map((part) => (part.key ? h("span.ref", { "data-block": part.key }, part.text) : part)));
  const textOf = (parts) => parts.map((part) => part.text ?? part).join("");

  /* Keep room for a state: {lanes, rows, words}; the words are a title and events. The frame grows with the largest, and never shrinks. */
  function reserve(ui, { lanes, rows, words }) {
    const needed = Math.min(MOST, Math.max(LEAST, lanes * LANE + (rows ? rows * ROW + CAPTION : 0)));
    if (needed > ui.needed) ui.body.style.setProperty("--bv-lanes", `${(ui.needed = needed)}px`);
    const [title, events] = words;
    const length = title.length + events.reduce((sum, { parts }) => sum + 20 + textOf(parts).length, 0);
    if (ui.ghosts.length === GHOSTS && length <= ui.ghosts.at(-1).length) return;
    if (ui.ghosts.some((ghost) => ghost.length === length)) return;
    const ghost = h("div.ghost", { "aria-hidden": "true" }, h("p", {}, title), h("ul", {}, ...events.map(item)));
    ui.stage.append(ghost);
    ui.ghosts.push({ length, ghost });
    ui.ghosts.sort((a, b) => b.length - a.length);
    ui.ghosts.splice(GHOSTS).forEach((each) => each.ghost.remove());
  }

  globalThis.minipagedFrame = { frame: minipagedFrame, reserve, item, mostRows: Math.floor((MOST - 4 * LANE) / ROW) };
})();
