// A line of a reference lights the lines of its kernel that do the same, and a line of a kernel those of its
// reference. The build has numbered these lines (docs/_build/twins.py). Pointing at a line lights its pair, and so
// does moving to its number with Tab; the sentence above the twins then says what the lines do.

(() => {
  const LINE = ".twin [data-pair]";

  function show(line) {
    for (const lit of document.querySelectorAll(".twin .lit")) lit.classList.remove("lit");
    for (const hint of document.querySelectorAll(".twins-hint.telling")) {
      hint.textContent = hint.dataset.hint;
      hint.classList.remove("telling");
    }
    if (!line) return;
    const twins = line.closest(".twins");
    const lines = twins.querySelectorAll(`[data-pair="${line.dataset.pair}"]`);
    for (const each of lines) each.classList.add("lit");
    const hint = twins.querySelector(".twins-hint");
    hint.textContent = lines[0].querySelector(".mark").getAttribute("aria-label");
    hint.classList.add("telling");
  }

  const at = (element) => element?.closest?.(LINE) ?? null;

  // Listening on the document serves the pages that instant navigation brings, too.
  document.addEventListener("pointerover", ({ target }) => show(at(target) ?? at(document.activeElement)));
  document.addEventListener("focusin", ({ target }) => show(at(target)));
  document.addEventListener("focusout", () => show(null));
})();
