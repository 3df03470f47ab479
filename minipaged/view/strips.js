/* What the block view is made of: elements, and the strip of slots that stands for a block.
 *
 * A strip looks alike in a block table and in the pool: a number, the slots with their tokens, and a mark. In a pool
 * of more than 64 blocks a strip has no slots, and its colour reaches as far as they are filled.
 */
(() => {
  "use strict";

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

  /* A block in a table or a pool: short texts for the eye, a sentence for a screen reader. */
  function newCell() {
    const cell = h("li.cell", { tabindex: "-1" });
    for (const name of ["small", "slots", "note", "mark"]) cell[name] = h(`span.${name}`, { "aria-hidden": "true" });
    cell.said = h("span.said");
    cell.append(cell.small, cell.slots, cell.note, cell.mark, cell.said);
    return cell;
  }

  /* `look` is {key, small, slots, note, mark, badge, said, fill, hues, kind, event}. What is there already stays. */
  function paint(cell, look) {
    const signature = Object.values(look).join("|");
    if (cell.signature === signature) return;
    cell.signature = signature;
    cell.dataset.block = look.key;
    cell.dataset.kind = look.kind;
    cell.dataset.event = look.event ?? "";
    for (const name of ["small", "note", "mark", "said"]) setText(cell[name], look[name] ?? "");
    cell.mark.dataset.badge = look.badge ?? "";
    cell.toggleAttribute("data-strip", Boolean(look.slots));
    fit(cell.slots, look.slots?.length ?? 0, () => h("span.slot"));
    look.slots?.forEach((text, i) => {
      cell.slots.children[i].toggleAttribute("data-full", text !== null);
      setText(cell.slots.children[i], visible(text ?? ""));
    });
    cell.style.setProperty("--fill", `${Math.round(look.fill * 100)}%`);
    cell.style.setProperty("--edge", look.hues.length ? `var(--bv-hue-${look.hues[0]})` : "");
    cell.style.setProperty("--paint", stripes(look.hues));
  }

  /* The slots of a block: the text of each token, "" for a token without one, null for an empty slot. */
  const slotsOf = (texts, filled, size) => Array.from({ length: size }, (_, i) => (i < filled ? texts[i] ?? "" : null));

  /* A token's text without the space that begins most of them. */
  const visible = (text) => text.replaceAll("\n", "⏎").trim() || (text ? "␣" : "");

  /* The colours of up to four owners, side by side. */
  function stripes(hues) {
    const part = 100 / hues.length;
    const stops = hues.map((hue, i) => `var(--bv-fill-${hue}) ${i * part}% ${(i + 1) * part}%`);
    return hues.length ? `linear-gradient(135deg, ${stops.join(", ")})` : "none";
  }

  /* Fit a list to as many children as needed. */
  function fit(list, count, make = newCell) {
    while (list.children.length < count) list.append(make());
    while (list.children.length > count) list.lastChild.remove();
    return list.children;
  }

  globalThis.minipagedStrips = { h, setText, paint, slotsOf, stripes, fit };
})();
