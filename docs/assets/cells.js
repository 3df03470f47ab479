// Cells that run in the reader's browser. There is one Python, in a worker, and it starts once a visit: when a reader
// first goes into a cell or presses Run. Stop ends the worker, which a loop keeps busy, and starts the next one at once.

(() => {
  let python = null; // the worker, once a reader has asked for it
  let running = null; // the cell whose code it runs
  const served = location.protocol !== "file:";

  function startPython() {
    if (python || !served) return;
    const worker = new Worker(new URL("assets/cell_worker.js", BASE), { type: "module" });
    worker.onmessage = ({ data }) => worker === python && running?.receive(data);
    worker.onerror = (event) => worker === python && running?.receive({ broken: event.message || "no answer" });
    python = worker;
    python.loaded = false;
    python.postMessage({ base: BASE.href });
  }

  class Cell {
    // A text area with Python code and the numbers of its lines, and below it what the code prints.
    constructor(element) {
      const find = (name) => element.querySelector(`.cell-${name}`);
      this.element = element;
      [this.code, this.lines, this.output, this.note, this.button] =
        ["code", "lines", "output", "note", "run"].map(find);
      this.first = { code: this.code.value, output: this.output.innerHTML, lines: this.lines.innerHTML };
      this.button.addEventListener("click", () => (running === this ? this.stop() : this.run()));
      find("reset").addEventListener("click", () => this.reset());
      this.code.addEventListener("focus", startPython);
      this.code.addEventListener("input", () => this.fit());
      this.code.addEventListener("keydown", (event) => this.key(event));
      this.size();
    }

    // The numbers of the lines, of which `wrong` is red, and a text area as high as they are.
    fit(wrong = 0) {
      const count = this.code.value.split("\n").length;
      this.lines.replaceChildren(...Array.from({ length: count }, (_, index) => {
        const number = document.createElement("span");
        number.textContent = index + 1;
        number.classList.toggle("cell-wrong", index + 1 === wrong);
        return number;
      }));
      this.size();
    }

    size() {
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
      this.output.innerHTML = this.first.output;
      this.lines.innerHTML = this.first.lines;
      this.note.textContent = "";
      this.size();
    }

    run() {
      running?.stop(); // there is one Python
      if (!served) {
        this.note.textContent = "A browser runs Python only on pages that are served: make docs-serve";
        return;
      }
      running = this;
      this.text = "";
      this.output.textContent = ""; // what the program before it printed isn't this one's
      this.fit();
      this.button.textContent = "Stop";
      startPython();
      this.note.textContent = python.loaded ? "running ..." : "loading Python, 13 MB, once ...";
      python.postMessage({ code: this.code.value, base: BASE.href });
    }

    stop() {
      python.terminate();
      python = null;
      startPython();
      this.show();
      this.ended("stopped");
    }

    ended(note) {
      running = null;
      this.button.textContent = "Run";
      this.note.textContent = note;
    }

    receive({ started, text, ended, error, line, broken }) {
      if (started) {
        python.loaded = true;
        this.note.textContent = "running ...";
      } else if (text !== undefined) {
        this.text += text;
        this.painting ??= setTimeout(() => this.show(), 30); // a loop may print faster than a page can be drawn
      } else if (ended) {
        this.show(error);
        if (line) this.fit(line);
        this.ended(error ? "ended with an exception" : this.text ? "done" : "done, nothing printed");
      } else {
        this.ended(`Python could not be loaded: ${broken}`);
      }
    }

    // What has been printed, and below it, in red, the error that ended the cell.
    show(error = "") {
      clearTimeout(this.painting);
      this.painting = null;
      this.output.textContent = error ? this.text : this.text.trimEnd();
      if (!error) return;
      const red = document.createElement("span");
      red.className = "cell-error";
      red.textContent = error;
      this.output.append(red);
    }
  }

  // The theme swaps pages: a cell that has gone with its page stops.
  document$.subscribe(() => {
    if (running && !running.element.isConnected) running.stop();
    for (const cell of document.querySelectorAll(".cell:not([data-ready])")) {
      cell.dataset.ready = "";
      new Cell(cell);
    }
  });
})();
