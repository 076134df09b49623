// Opens a conformance report in a real browser, narrow and wide, light and dark, and says what is wrong with it.
//
//   node tests/browser/conformance.mjs report.html
//   node tests/browser/conformance.mjs --self-test report.html     breaks the page on purpose; each fault must be found
//
// A report to try it on: lockstep conformance --html report.html
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { launch, tab } from "./chromium.mjs";
import { inspect } from "./inspect.mjs";

const WIDTHS = [400, 1600];
const SCHEMES = ["light", "dark"];
const KINDS = ["histogram", "points", "cells", "tokens", "spans"];

const FAULTS = [
  ["script error", (page) => page.replace("</body>", "<script>undefinedFunction();</script></body>"), /console error|exception/],
  ["something from outside", (page) => page.replace("</body>", '<img src="picture.png" alt="" /></body>'), /console error/],
  ["curves without points", (page) => page.replace(/(<path class="curve[^"]*" d=")[^"]*/g, "$1M50 50"), /plot without a curve/],
  ["too wide", (page) => page.replace("</main>", '<p style="width: 1700px; max-width: none">wide</p></main>'), /wider than the window/],
  ["pale text", (page) => page.replace("--muted: #5a6169", "--muted: #c8ccd0"), /contrast/],
  ["no time line", (page) => page.replaceAll('figure class="spans"', 'figure class="gone"'), /no spans/],
];

async function problemsOf(browser, file) {
  const problems = [];
  for (const width of WIDTHS)
    for (const scheme of SCHEMES) {
      const page = await tab(browser);
      await page.send("Emulation.setDeviceMetricsOverride", { width, height: 1000, deviceScaleFactor: 1, mobile: false });
      await page.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }] });
      await page.open(pathToFileURL(resolve(file)).href);
      const found = await page.evaluate(`(${inspect})()`);
      for (const kind of KINDS)
        if (!(await page.evaluate(`!!document.querySelector("figure.${kind}")`))) found.push(`no ${kind}`);
      problems.push(...[...page.complaints, ...found].map((problem) => `${width} px, ${scheme}: ${problem}`));
      await page.close();
    }
  return problems;
}

async function selfTest(browser, file) {
  const source = await readFile(file, "utf8");
  const directory = await mkdtemp(join(tmpdir(), "lockstep-conformance-"));
  try {
    const missed = [];
    for (const [name, breakPage, expected] of FAULTS) {
      const broken = join(directory, `${name.replaceAll(" ", "-")}.html`);
      await writeFile(broken, breakPage(source));
      const problems = await problemsOf(browser, broken);
      if (!problems.some((problem) => expected.test(problem))) missed.push(`fault "${name}" was not found; found instead: ${problems[0] ?? "nothing"}`);
    }
    return missed;
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

const testing = process.argv[2] === "--self-test";
const file = process.argv[testing ? 3 : 2];
const browser = await launch();
try {
  const problems = testing ? await selfTest(browser, file) : await problemsOf(browser, file);
  problems.forEach((problem) => console.error(`error: ${problem}`));
  if (problems.length === 0) console.log(testing ? `ok: all ${FAULTS.length} faults were found` : `ok: ${file} at ${WIDTHS.join(" and ")} px, ${SCHEMES.join(" and ")}`);
  process.exitCode = problems.length === 0 ? 0 : 1;
} finally {
  await browser.close();
}
