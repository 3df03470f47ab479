// Python in the background of a visit: Pyodide, with the project's reference/ as minipaged.reference. What a cell
// prints is sent on at once, since a cell may be stopped, or never come to an end.

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
  pyodide.runPython("import sys; sys.path.insert(0, '/lib/own')");
  const { run_cell: runCell, forget_modules: forgetModules } = pyodide.pyimport("run_cell");
  return (code, tell) => {
    forgetModules("/lib/own"); // a cell may have changed them
    return runCell(code, tell);
  };
}

onmessage = async ({ data }) => {
  try {
    ready ??= load(data.base);
    const runCell = await ready;
    if (data.code === undefined) return; // only to be ready
    postMessage({ started: true });
    const result = runCell(data.code, (text) => postMessage({ text }));
    const [error, line] = result.toJs();
    result.destroy();
    postMessage({ ended: true, error, line });
  } catch (error) {
    ready = null; // the next Run tries again
    postMessage({ broken: String(error.message || error) });
  }
};
