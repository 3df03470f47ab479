// Python in the background of a page: Pyodide, with the project's reference/ as minipaged.reference.

let ready = null;

async function load(base) {
  const { loadPyodide } = await import(new URL("assets/pyodide/pyodide.mjs", base));
  const pyodide = await loadPyodide({ indexURL: new URL("assets/pyodide/", base).href });
  const files = await (await fetch(new URL("assets/reference.json", base))).json();
  pyodide.FS.mkdirTree("/lib/own/minipaged/reference");
  pyodide.FS.writeFile("/lib/own/minipaged/__init__.py", "");
  for (const [name, text] of Object.entries(files)) {
    pyodide.FS.writeFile(`/lib/own/minipaged/reference/${name}`, text);
  }
  // The very file that ran the cells when the site was built.
  pyodide.FS.writeFile("/lib/own/run_cell.py", await (await fetch(new URL("assets/run_cell.py", base))).text());
  return pyodide.runPython("import sys; sys.path.insert(0, '/lib/own'); from run_cell import run_cell; run_cell");
}

onmessage = async ({ data }) => {
  try {
    ready ??= load(data.base);
    const runCell = await ready;
    postMessage({ started: true });
    const result = runCell(data.code);
    const [text, failed] = result.toJs();
    result.destroy();
    postMessage({ text, failed });
  } catch (error) {
    ready = null; // the next Run tries again
    postMessage({ broken: String(error.message || error) });
  }
};
