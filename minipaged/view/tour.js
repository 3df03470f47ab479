/* A guided tour of a recording: cards that explain a step each and point at what they speak of.
 *
 * The cards come with the recording and were written from it. In their texts "@11" stands for block 11 and "#A" for
 * request A. Between two cards the view plays the steps that lie between them.
 */
(() => {
  "use strict";

  const { h, setText } = globalThis.minipagedStrips;
  const PACE = 320; // milliseconds a step, on the way to the next card

  /* Begin at the first card. `view` is {root, stage, goto, select, index}; `button` opens and closes the tour. */
  function minipagedTour(view, button, cards) {
    let at = 0;
    let timer = null;
    const back = h("button", { type: "button" }, "Back");
    const next = h("button.primary", { type: "button" }, "Next");
    const close = h("button", { type: "button", "aria-label": "Close the tour" }, "✕");
    const number = h("span.number");
    const pages = cards.map((card) => h("div.page", {}, h("p.title", {}, card.title), h("p", {}, ...withSigns(card.text))));
    const deck = h("div.deck", { "aria-live": "polite" }, ...pages);
    const panel = h("section.tour", { "aria-label": "Guided tour" }, deck, h("div.steps", {}, back, number, next, close));
    view.stage.append(panel);

    function open(index) {
      at = Math.max(0, Math.min(cards.length - 1, index));
      view.root.dataset.touring = "";
      pages.forEach((page, i) => page.toggleAttribute("data-shown", i === at));
      setText(number, `${at + 1} of ${cards.length}`);
      setText(next, at === cards.length - 1 ? "Explore" : "Next");
      back.setAttribute("aria-disabled", at === 0);
      button.setAttribute("aria-pressed", "true");
      clearTimeout(timer);
      point([]);
      walk();
    }

    /* Play up to the card's step, then point. */
    function walk() {
      const { step, table, points } = cards[at];
      const isNear = step - 1 > view.index() && !matchMedia("(prefers-reduced-motion: reduce)").matches;
      view.goto(isNear ? view.index() + 2 : step, table);
      if (view.index() + 1 !== step) timer = setTimeout(walk, PACE);
      else point(points);
    }

    function point(points) {
      for (const element of view.root.querySelectorAll(".bv-pointed")) element.classList.remove("bv-pointed");
      const names = { table: '.bv-lane[data-selected]' };
      const lane = ".bv-lane[data-selected]";
      const queries = points.map((each) => names[each] ?? `:is(.bv-pool, ${lane}) [data-block="${each}"]`);
      view.root.toggleAttribute("data-pointing", queries.length > 0 && !points.includes("table"));
      for (const query of queries) {
        for (const element of view.root.querySelectorAll(query)) element.classList.add("bv-pointed");
      }
      view.redraw();
    }

    function leave() {
      clearTimeout(timer);
      point([]);
      delete view.root.dataset.touring;
      button.setAttribute("aria-pressed", "false");
    }

    back.addEventListener("click", () => open(at - 1));
    next.addEventListener("click", () => {
      if (at < cards.length - 1) return open(at + 1);
      leave();
      at = 0;
      button.focus();
    });
    close.addEventListener("click", () => (leave(), button.focus()));
    button.addEventListener("click", () => (view.root.dataset.touring === undefined ? open(at) : leave()));
    button.hidden = false;
    return { open, leave };
  }

  /* A text with its blocks and requests marked. */
  function withSigns(text) {
    return text.split(/(@\d+|#\w+(?:\.\d+)?)/).map((part) => {
      if (part[0] === "@") return h("span.ref", { "data-block": part.slice(1) }, part.slice(1));
      return part[0] === "#" ? h("strong", {}, part.slice(1)) : part;
    });
  }

  globalThis.minipagedTour = minipagedTour;
})();
