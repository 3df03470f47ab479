// What every page does: formulas, the search field, and pages that are swapped instead of loaded, so that what runs
// in the background goes on through a visit. Python is in python.js, cells are in cells.js, twins in twins.js, the
// block view in block_view.js.

const BASE = new URL("..", document.currentScript.src); // the site's root

// A page with formulas loads what draws them; the others needn't.
function setUpFormulas() {
  const formulas = document.querySelectorAll(".arithmatex");
  if (!formulas.length) return;
  const katex = new URL("assets/katex/", BASE);
  const style = document.createElement("link"); // the theme clears the head when it swaps a page
  Object.assign(style, { rel: "stylesheet", href: new URL("katex.min.css", katex) });
  document.head.append(style);
  if (window.katex) return formulas.forEach(drawFormula);
  const script = document.createElement("script");
  script.src = new URL("katex.min.js", katex);
  script.onload = () => formulas.forEach(drawFormula);
  document.head.append(script);
}

function drawFormula(element) {
  const text = element.textContent.trim(); // between \( and \), or \[ and \]
  window.katex.render(text.slice(2, -2), element, { displayMode: text.startsWith("\\["), throwOnError: false });
}

// The theme searches when a key goes up: what is pasted or dictated is to be found, too.
function setUpSearch() {
  const field = document.querySelector(".md-search__input");
  field?.addEventListener("input", () => field.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true })));
}

// The theme can swap pages, but asks a sitemap of absolute addresses which ones. This site doesn't know its address,
// so it tells the theme itself. A link with a modifier key or a target of its own is the browser's, as is a hash.
function swapPage(event) {
  const link = event.target.closest?.("a[href]");
  const other = event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey;
  if (other || !link || link.target || link.hasAttribute("download")) return;
  const page = new URL(link.href);
  const here = page.pathname === location.pathname;
  if (!page.href.startsWith(BASE.href) || !page.pathname.endsWith(".html") || (here && page.hash)) return;
  event.preventDefault();
  history.replaceState({ x: scrollX, y: scrollY }, "");
  history.pushState(null, "", page);
  location$.next(page);
}

document.querySelector(".md-search")?.setAttribute("aria-label", "Search"); // the theme gives this dialog no name
setUpSearch();
document$.subscribe(setUpFormulas); // at once, and after each swap
if (location.protocol !== "file:") document.addEventListener("click", swapPage);
