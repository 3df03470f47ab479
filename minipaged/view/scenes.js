/* Starts the block views of a page, and opens them where the page's address says.
 *
 * An element of class "block-view" with data-trace="#id of a template or script", or a URL, replays a recording. One with
 * data-stream="URL" draws the lines of an answer as they come. An address that ends in "#scene=beams&step=4" leads to
 * step 4 of the view with data-scene="beams", and "#step=4" to that of a view without a name.
 */
(() => {
  "use strict";

  const { h } = globalThis.minipagedStrips;

  /* Start every element of class block-view that names a source and has not been started. */
  function start() {
    for (const element of document.querySelectorAll(".block-view:is([data-trace], [data-stream]):not([data-started])")) {
      element.dataset.started = "";
      const { trace, stream } = element.dataset;
      (stream ? follow(element, stream) : open(element, trace)).catch((error) => {
        element.replaceChildren(h("p.error", { role: "alert" }, `The block view can't show ${stream ?? trace}: ${error.message}`));
      });
    }
  }

  async function open(element, source) {
    element.blockView = globalThis.minipagedBlockView(element, await load(source));
    if (element.dataset.step) element.blockView.goto(Number(element.dataset.step));
    if (element.dataset.tour) element.blockView.guide(JSON.parse(await load(element.dataset.tour)));
    visit(element);
  }

  /* Draw the lines of an answer that goes on. */
  async function follow(element, url) {
    element.blockView = globalThis.minipagedBlockView(element);
    const answer = await fetch(url);
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.trim()) element.blockView.append(line);
    }
  }

  /* The text of a trace or of a tour: "#id" of a template or script in this page, or a URL. */
  async function load(source) {
    if (source[0] === "#") {
      const holder = document.getElementById(source.slice(1));
      if (!holder) throw new Error("the page has no such element");
      return (holder.content ?? holder).textContent;
    }
    const response = await fetch(source);
    if (!response.ok) throw new Error(`the server answers ${response.status}`);
    return response.text();
  }

  /* Go to the step that the address names, if it means this view: the first of its name. */
  function visit(element) {
    const address = new URLSearchParams(location.hash.slice(1));
    const step = Number(address.get("step"));
    const scene = address.get("scene") ?? "";
    const named = [...document.querySelectorAll(".block-view")].find((each) => (each.dataset.scene ?? "") === scene);
    if (!step || named !== element || !element.blockView) return;
    element.blockView.goto(step);
    element.scrollIntoView({ block: "start" });
  }

  addEventListener("hashchange", () => document.querySelectorAll(".block-view").forEach(visit));
  globalThis.minipagedBlockView.start = start;
  // mkdocs-material tells when it swaps a page. In a folder it swaps none, and says nothing.
  if (globalThis.document$ && location.protocol !== "file:") document$.subscribe(start);
  else if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
