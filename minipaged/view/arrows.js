/* Arrows from the logical blocks of a sequence to the physical blocks of the pool.
 *
 * An arrow never crosses a block: it leaves the table at its right edge, runs through the gap above the row of its
 * block, and ends at the left edge of the block. Where the pool stands below the table, one arrow at a time runs down
 * the right margin.
 */
(() => {
  "use strict";

  const SVG = "http://www.w3.org/2000/svg";
  const HEAD = 5; // pixels

  /* A layer over `body`, in which arrows are drawn. */
  function minipagedArrows(body) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("class", "bv-arrows");
    svg.setAttribute("aria-hidden", "true");
    body.append(svg);
    let frame = null;
    let drawn = { pairs: [], isLit: () => false };

    /* Draw {id, from, to, hue, isNew} from cell to cell, before the next frame. */
    function draw(pairs, isLit) {
      drawn = { pairs, isLit };
      frame ??= requestAnimationFrame(place);
    }

    function place() {
      frame = null;
      const origin = body.getBoundingClientRect();
      const isStacked = getComputedStyle(body).display !== "grid";
      const { pairs, isLit } = drawn;
      const hasLit = pairs.some(({ to }) => isLit(to));
      const wanted = pairs.filter(({ from, to, isNew }) => {
        const isMeant = !isStacked || (hasLit ? isLit(to) : isNew);
        return isMeant && isInSight(from) && isInSight(to);
      });
      const old = new Map([...svg.children].map((group) => [group.dataset.id, group]));
      svg.toggleAttribute("data-lit", hasLit);
      for (const { id, from, to, hue } of wanted) {
        const group = old.get(id) ?? newArrow(id);
        old.delete(id);
        const route = isStacked ? alongTheMargin : throughTheGap;
        const [line, tip, turn] = route(box(from, origin), box(to, origin), box(to.parentNode, origin), origin.width);
        group.setAttribute("class", isLit(to) ? "bv-lit-arrow" : "");
        group.style.setProperty("--edge", `var(--bv-hue-${hue})`);
        group.firstChild.setAttribute("d", line);
        group.lastChild.setAttribute("d", `M${tip} l${-turn * HEAD},${-HEAD} v${2 * HEAD} z`);
      }
      for (const group of old.values()) group.remove();
    }

    function newArrow(id) {
      const group = svg.appendChild(document.createElementNS(SVG, "g"));
      group.dataset.id = id;
      group.append(document.createElementNS(SVG, "path"), document.createElementNS(SVG, "path"));
      group.firstChild.setAttribute("pathLength", "1");
      return group;
    }

    return { draw, redraw: () => draw(drawn.pairs, drawn.isLit) };
  }

  /* Where an element is, from the corner of the layer. */
  function box(element, origin) {
    const { left, right, top, bottom } = element.getBoundingClientRect();
    const [x, y] = [origin.left, origin.top];
    return { left: left - x, right: right - x, top: top - y, bottom: bottom - y, middle: (top + bottom) / 2 - y };
  }

  /* Whether a cell is not scrolled out of its list. */
  function isInSight(cell) {
    for (let list = cell.parentNode; list && !list.matches(".bv-body"); list = list.parentNode) {
      const [inner, outer] = [cell.getBoundingClientRect(), list.getBoundingClientRect()];
      if (inner.bottom < outer.top + 2 || inner.top > outer.bottom - 2) return false;
    }
    return true;
  }

  function throughTheGap(from, to, pool) {
    const [x, y] = [from.right + 1, from.middle];
    const tip = `${to.left},${to.middle}`;
    const end = to.left - HEAD;
    const bend = Math.max(16, (pool.left - x) / 2);
    if (to.left - pool.left < 8) return [`M${x},${y} C${x + bend},${y} ${end - bend},${to.middle} ${end},${to.middle}`, tip, 1];
    const gap = to.top - 2;
    return [
      `M${x},${y} C${x + bend},${y} ${pool.left - bend},${gap} ${pool.left},${gap} H${end - 9} `
      + `Q${end - 6},${gap} ${end - 5},${(gap + to.middle) / 2} T${end},${to.middle}`, tip, 1,
    ];
  }

  function alongTheMargin(from, to, pool, width) {
    const margin = width - 2;
    const gap = to.top - 2;
    const isLast = pool.right - to.right < 8;
    const [x, y, end] = [from.right + 1, from.middle, to.right + HEAD];
    const across = isLast ? to.middle : gap;
    const arrive = isLast ? `H${end}` : `H${end + 9} Q${end + 6},${gap} ${end + 5},${(gap + to.middle) / 2} T${end},${to.middle}`;
    return [`M${x},${y} H${margin - 6} Q${margin},${y} ${margin},${y + 6} V${across - 6} Q${margin},${across} ${margin - 6},${across} ${arrive}`,
      `${to.right},${to.middle}`, -1];
  }

  globalThis.minipagedArrows = minipagedArrows;
})();
