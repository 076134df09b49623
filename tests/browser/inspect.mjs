// What is looked at inside the page. These functions run there, so each holds everything that it needs.

/** Problems of the page as it is laid out, in words. */
export function inspect() {
  const problems = [];
  const scroller = document.scrollingElement;
  if (scroller.scrollWidth > innerWidth) problems.push(`wider than the window: ${scroller.scrollWidth} > ${innerWidth} px`);

  const plots = [...document.querySelectorAll("svg.plot")];
  if (plots.length === 0 && document.querySelector("tr[data-step]")) problems.push("no plot, though there are steps");
  for (const plot of plots) {
    const drawn = [...plot.querySelectorAll("path.curve, polyline")].some((path) => {
      const { width, height } = path.getBoundingClientRect();
      return width + height > 0;
    });
    if (!drawn && !plot.matches(".empty")) problems.push(`plot without a curve: ${plot.querySelector("title")?.textContent}`);
    const frame = plot.getBoundingClientRect();
    const boxes = [];
    for (const text of plot.querySelectorAll("text")) {
      const box = text.getBoundingClientRect();
      const over = boxes.find(([, other]) => box.left < other.right && other.left < box.right && box.top + 3 < other.bottom && other.top + 3 < box.bottom);
      if (over) problems.push(`text over text: ${text.textContent} and ${over[0]}`);
      boxes.push([text.textContent, box]);
      const out = box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
      if (out) problems.push(`text outside its plot: ${text.textContent}`);
      if (box.height < 11) problems.push(`text too small: ${text.textContent}, ${box.height.toFixed(1)} px high`);
    }
  }

  const rgb = (color) => color.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0];
  const luminance = (color) => {
    const [r, g, b] = color.slice(0, 3).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = rgb(getComputedStyle(at).backgroundColor);
      if ((color[3] ?? 1) > 0) return color;
    }
    return [255, 255, 255];
  };
  const poor = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || element.closest("title, desc, script") || !element.checkVisibility?.()) continue;
    const style = getComputedStyle(element);
    const ink = luminance(rgb(element instanceof SVGElement ? style.fill : style.color));
    const paper = luminance(background(element));
    const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (contrast < 4.5 && !poor.has(contrast)) poor.set(contrast, node.textContent.trim().slice(0, 40));
  }
  for (const [contrast, text] of poor) problems.push(`text contrast ${contrast.toFixed(2)} below 4.5: ${text}`);
  return problems;
}

/** Where to point, and what should then be shown. */
export const hover = {
  target: function () {
    const plot = document.querySelector("svg.plot");
    if (!plot) return undefined;
    plot.scrollIntoView({ block: "center" });
    const { left, top, width, height } = plot.getBoundingClientRect();
    return { x: left + width * 0.3, y: top + height * 0.5 };
  },
  shown: function () {
    const rows = [...document.querySelectorAll("tr[data-step]")];
    const shown = [...document.querySelectorAll("#curves [data-step]")].map((label) => label.textContent);
    const cursors = [...document.querySelectorAll("#curves .cursor")].filter((cursor) => getComputedStyle(cursor).opacity === "1");
    const problems = [];
    if (new Set(shown).size !== 1) problems.push(`the plots show different steps under the pointer: ${shown.join(", ")}`);
    if (!rows.some((row) => row.cells[0].textContent === shown[0])) problems.push(`the pointer shows a step that is not there: ${shown[0]}`);
    if (rows.length > 3 && shown[0] === rows.at(-1).cells[0].textContent) problems.push("the pointer shows nothing: still at the last step");
    if (cursors.length !== shown.length) problems.push(`the cursor is in ${cursors.length} of ${shown.length} plots`);
    return problems;
  },
};
