// What every page does: the search field, and pages that are swapped instead of loaded, so that what runs
// in the background goes on through a visit. Python is in python.js, cells are in cells.js, twins in twins.js, the
// block view in block_view.js.

const BASE = new URL("..", document.currentScript.src); // the site's root

// Call `setUp` on this page, and on each page that the theme swaps in. In a folder the theme swaps none, and its
// document$ says nothing.
function onEachPage(setUp) {
  if (location.protocol === "file:") setUp();
  else document$.subscribe(setUp);
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
if (location.protocol !== "file:") document.addEventListener("click", swapPage);
