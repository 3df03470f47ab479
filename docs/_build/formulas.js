// Draws formulas: a list of [TeX, whether it stands alone] on standard input, a list of HTML on standard output.
const { renderToString } = require("katex");
const asked = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(asked.map(([tex, displayMode]) => renderToString(tex, { displayMode }))));
