// Cells that run in the reader's browser, and formulas. Nothing is loaded before a reader presses Run.

const BASE = new URL("..", document.currentScript.src); // the site's root

function setUpCells() {
  for (const cell of document.querySelectorAll(".cell")) new Cell(cell);
}

class Cell {
  // A text area with Python code, and below it what the code prints.
  constructor(element) {
    this.code = element.querySelector(".cell-code");
    this.output = element.querySelector(".cell-output");
    this.note = element.querySelector(".cell-note");
    this.button = element.querySelector(".cell-run");
    this.first = { code: this.code.value, output: this.output.textContent };
    this.button.addEventListener("click", () => (running === this ? this.stop() : this.run()));
    element.querySelector(".cell-reset").addEventListener("click", () => this.reset());
    this.code.addEventListener("input", () => this.fit());
    this.code.addEventListener("keydown", (event) => this.key(event));
    this.fit();
  }

  fit() {
    this.code.style.height = "auto";
    this.code.style.height = `${this.code.scrollHeight + 2}px`;
  }

  key(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.shiftKey)) {
      event.preventDefault();
      this.run();
    } else if (event.key === "Tab" && !event.shiftKey && !this.leaving) {
      event.preventDefault();
      this.code.setRangeText("    ", this.code.selectionStart, this.code.selectionEnd, "end");
    }
    this.leaving = event.key === "Escape"; // Escape, then Tab leaves: the keyboard must not be trapped
  }

  reset() {
    if (running === this) this.stop();
    this.code.value = this.first.code;
    this.show(this.first.output, false);
    this.note.textContent = "";
    this.fit();
  }

  run() {
    running?.stop(); // there is one Python
    if (location.protocol === "file:") {
      this.note.textContent = "A browser runs Python only on pages that are served: make docs-serve";
      return;
    }
    running = this;
    this.show("", false); // what the program before it printed isn't this one's
    this.button.textContent = "Stop";
    this.note.textContent = python ? "running ..." : "loading Python, 13 MB, once ...";
    python ??= startPython();
    python.postMessage({ code: this.code.value, base: BASE.href });
  }

  stop() {
    python.terminate(); // the next Run starts another
    python = null;
    this.ended("stopped");
  }

  ended(note) {
    running = null;
    this.button.textContent = "Run";
    this.note.textContent = note;
  }

  receive({ started, broken, text, failed }) {
    if (started) {
      this.note.textContent = "running ...";
    } else if (broken) {
      this.ended(`Python could not be loaded: ${broken}`);
    } else {
      this.show(text, failed);
      this.ended(failed ? "ended with an exception" : text ? "done" : "done, nothing printed");
    }
  }

  show(text, failed) {
    this.output.textContent = text;
    this.output.classList.toggle("cell-failed", failed);
  }
}

let python = null; // the worker, once a reader has asked for it
let running = null; // the cell whose code it runs

function startPython() {
  const worker = new Worker(new URL("assets/cell_worker.js", BASE), { type: "module" });
  worker.onmessage = ({ data }) => worker === python && running?.receive(data);
  worker.onerror = (event) => worker === python && running?.receive({ broken: event.message || "no answer" });
  return worker;
}

// A page with formulas loads what draws them; the others needn't.
function setUpFormulas() {
  const formulas = document.querySelectorAll(".arithmatex");
  if (!formulas.length) return;
  const katex = new URL("assets/katex/", BASE);
  const style = document.createElement("link");
  Object.assign(style, { rel: "stylesheet", href: new URL("katex.min.css", katex) });
  const script = document.createElement("script");
  script.src = new URL("katex.min.js", katex);
  script.onload = () => formulas.forEach(drawFormula);
  document.head.append(style, script);
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

document.querySelector(".md-search")?.setAttribute("aria-label", "Search"); // the theme gives this dialog no name
setUpCells();
setUpSearch();
setUpFormulas();
