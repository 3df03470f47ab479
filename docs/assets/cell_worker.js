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
  pyodide.runPython("import sys; sys.path.insert(0, '/lib/own')");
  return pyodide;
}

// The same rule as when the site was built: each cell on its own, and of an exception the last lines.
const RUN = `
import contextlib, io, traceback
def run_cell(code):
    printed, failed = io.StringIO(), False
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(code, "cell", "exec"), {"__name__": "__main__"})
        except BaseException as error:
            printed.write("".join(traceback.format_exception_only(error)))
            failed = True
    return printed.getvalue().rstrip(), failed
run_cell
`;

onmessage = async ({ data }) => {
  try {
    ready ??= load(data.base);
    const pyodide = await ready;
    postMessage({ started: true });
    const result = pyodide.runPython(RUN)(data.code);
    const [text, failed] = result.toJs();
    result.destroy();
    postMessage({ text, failed });
  } catch (error) {
    ready = null; // the next Run tries again
    postMessage({ broken: String(error.message || error) });
  }
};
