// Shows the values of the step under the pointer, in every plot at once; they are read from the table of all steps.
(() => {
  const curves = document.querySelector("#curves");
  const table = document.querySelector("#steps");
  if (!curves) return;
  const [first, last, left, right] = ["first", "last", "left", "right"].map((name) => Number(curves.dataset[name]));
  const rows = [...table.tBodies[0].rows];
  const steps = rows.map((row) => Number(row.dataset.step));
  const column = new Map([...table.tHead.rows[0].cells].map((cell, at) => [cell.dataset.key, at]));
  const place = (step) => left + (first === last ? 0.5 : (step - first) / (last - first)) * (right - left);
  const show = (at, visible) => {
    for (const label of curves.querySelectorAll("[data-step]")) label.textContent = rows[at].cells[0].textContent;
    for (const label of curves.querySelectorAll("[data-value]"))
      label.textContent = rows[at].cells[column.get(label.dataset.value)].textContent;
    for (const cursor of curves.querySelectorAll(".cursor")) {
      cursor.style.transform = `translateX(${place(steps[at])}px)`;
      cursor.style.opacity = visible ? 1 : 0;
    }
  };
  for (const plot of curves.querySelectorAll("svg.plot")) {
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * plot.viewBox.baseVal.width;
      const distance = (at) => Math.abs(place(steps[at]) - x);
      show(rows.reduce((best, _, at) => (distance(at) < distance(best) ? at : best), 0), true);
    });
    plot.addEventListener("pointerleave", () => show(rows.length - 1, false));
  }
})();
