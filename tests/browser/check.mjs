// Opens a report in a real browser, narrow and wide, light and dark, and says what is wrong with it.
//
//   node tests/browser/check.mjs report.html [directory for screenshots]
//   node tests/browser/check.mjs --self-test report.html       breaks the page on purpose; each fault must be found
//
// Reports to try it on: LOCKSTEP_REPORT_DIR=directory cargo test -p lockstep --lib report
// Needs Node 20 and a Chromium (CHROMIUM=path where it has another name), and nothing else.
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { launch, tab } from "./chromium.mjs";
import { FAULTS } from "./faults.mjs";
import { hover, inspect } from "./inspect.mjs";

const WIDTHS = [400, 1600];
const SCHEMES = ["light", "dark"];
const HEIGHT = 1000;

/** What is wrong with the page in this view; an empty list when nothing is. */
async function checkView(browser, url, { width, scheme, screenshot }) {
  const page = await tab(browser);
  try {
    await page.send("Emulation.setDeviceMetricsOverride", { width, height: HEIGHT, deviceScaleFactor: 1, mobile: false });
    await page.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }] });
    await page.open(url);
    const problems = await page.evaluate(`(${inspect})()`);
    problems.push(...(await checkHover(page)));
    if (screenshot) await shoot(page, screenshot, width);
    await page.evaluate(`document.querySelectorAll("details").forEach((details) => (details.open = true))`);
    problems.push(...(await page.evaluate(`(${inspect})()`)).map((problem) => `with details open: ${problem}`));
    return [...page.complaints, ...problems].map((problem) => `${width} px, ${scheme}: ${problem}`);
  } finally {
    await page.close();
  }
}

/** Moves the pointer onto the first plot and reads what the page shows of that step. */
async function checkHover(page) {
  const at = await page.evaluate(`(${hover.target})()`);
  if (!at) return [];
  await page.send("Input.dispatchMouseEvent", { type: "mouseMoved", x: at.x, y: at.y });
  const problems = await page.evaluate(`(${hover.shown})()`);
  await page.send("Input.dispatchMouseEvent", { type: "mouseMoved", x: 1, y: 1 });
  await page.evaluate("scrollTo(0, 0)");
  return problems;
}

async function shoot(page, path, width) {
  const { cssContentSize } = await page.send("Page.getLayoutMetrics");
  const clip = { x: 0, y: 0, width, height: cssContentSize.height, scale: 1 };
  const { data } = await page.send("Page.captureScreenshot", { clip, captureBeyondViewport: true });
  await writeFile(path, Buffer.from(data, "base64"));
}

async function checkAll(browser, file, directory) {
  const url = pathToFileURL(resolve(file)).href;
  const problems = [];
  for (const width of WIDTHS)
    for (const scheme of SCHEMES) {
      const screenshot = directory && join(directory, `report-${width}-${scheme}.png`);
      problems.push(...(await checkView(browser, url, { width, scheme, screenshot })));
    }
  return problems;
}

/** Every fault must be found, and found for what it is. */
async function selfTest(browser, file) {
  const source = await readFile(file, "utf8");
  const directory = await mkdtemp(join(tmpdir(), "lockstep-report-"));
  try {
    const missed = (await checkAll(browser, file)).map((problem) => `the page is not clean to begin with: ${problem}`);
    for (const { name, breakPage, expect } of FAULTS) {
      const broken = join(directory, `${name.replaceAll(" ", "-")}.html`);
      const text = breakPage(source);
      if (text === source) missed.push(`fault "${name}" changed nothing`);
      await writeFile(broken, text);
      const problems = await checkAll(browser, broken);
      if (!problems.some((problem) => expect.test(problem)))
        missed.push(`fault "${name}" was not found; found instead: ${problems[0] ?? "nothing"}`);
    }
    return missed;
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

async function main(args) {
  const testing = args[0] === "--self-test";
  const [file, directory] = testing ? args.slice(1) : args;
  if (!file) throw new Error("usage: check.mjs [--self-test] report.html [directory for screenshots]");
  await readFile(file);
  if (directory) await mkdir(directory, { recursive: true });
  const browser = await launch();
  try {
    const problems = testing ? await selfTest(browser, file) : await checkAll(browser, file, directory);
    const more = problems.length > 1 ? ` (and ${problems.length - 1} more)` : "";
    if (problems.length > 0) throw new Error(`${problems[0]}${more}`);
    console.log(testing ? `ok: all ${FAULTS.length} faults were found` : `ok: ${file} at ${WIDTHS.join(" and ")} px, ${SCHEMES.join(" and ")}`);
  } finally {
    await browser.close();
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(`error: ${error.message}`);
  process.exitCode = 1;
});
