// Cells that run in the reader's browser. python.js has the Python that runs them.

(() => {
  class Cell {
    // A text area with Python code and the numbers of its lines, and below it what the code prints.
    constructor(element) {
      const find = (name) => element.querySelector(`.cell-${name}`);
      this.element = element;
      [this.code, this.lines, this.output, this.note, this.button] =
        ["code", "lines", "output", "note", "run"].map(find);
      this.first = { code: this.code.value, output: this.output.innerHTML, lines: this.lines.innerHTML };
      this.button.addEventListener("click", () => (PYTHON.runs(this) ? PYTHON.stop() : this.run()));
      find("reset").addEventListener("click", () => this.reset());
      this.code.addEventListener("focus", PYTHON.start);
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
      if (PYTHON.runs(this)) PYTHON.stop();
      this.code.value = this.first.code;
      this.output.innerHTML = this.first.output;
      this.lines.innerHTML = this.first.lines;
      this.note.textContent = "";
      this.size();
    }

    run() {
      if (!PYTHON.served) {
        this.note.textContent = "A browser runs Python only on pages that are served: make docs-serve";
        return;
      }
      PYTHON.run(this, this.code.value);
      this.text = "";
      this.output.textContent = ""; // what the program before it printed isn't this one's
      this.fit();
      this.button.textContent = "Stop";
      this.note.textContent = PYTHON.isLoaded() ? "running ..." : "loading Python, 13 MB, once ...";
    }

    stopped() {
      this.show();
      this.ended("stopped");
    }

    ended(note) {
      this.button.textContent = "Run";
      this.note.textContent = note;
    }

    receive({ started, text, ended, error, line, broken }) {
      if (started) {
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

  document$.subscribe(() => {
    for (const cell of document.querySelectorAll(".cell:not([data-ready])")) {
      cell.dataset.ready = "";
      new Cell(cell);
    }
  });
})();
