// What can be saved, copied and folded.
const save = (name, href) => {
  const link = document.createElement("a");
  link.href = href;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
};
const saveText = (name, kind, text) => {
  const url = URL.createObjectURL(new Blob([text], { type: kind }));
  save(name, url);
  setTimeout(() => URL.revokeObjectURL(url), 10000);
};
const saveJson = (name, value) => saveText(`${name}.json`, "application/json", JSON.stringify(value, null, 1) + "\n");

// a cell of words that a spreadsheet would take for a formula gets an apostrophe
const cell = (value) => {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
const csv = (columns, rows) => [columns, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
const rowsOf = (table) => {
  const columns = whole(table.data);
  return columns.length ? columns[0].map((_, i) => columns.map((column) => column[i])) : [];
};
const chartCsv = (spec) => {
  if (spec.table) return csv(whole(spec.table.columns), rowsOf(spec.table));
  const rows = [];
  if (spec.columns) {
    const fields = Object.keys(spec.columns);
    for (const trace of whole(spec.frames[0].data)) {
      trace.x.forEach((_, i) => rows.push(fields.map((field) => (Array.isArray(trace[field]) ? trace[field][i] : trace[field]))));
    }
    return csv(Object.values(spec.columns), rows);
  }
  for (const frame of spec.frames) {
    const heat = whole(frame.data).find((trace) => trace.type === "heatmap");
    heat.x.forEach((layer, i) => heat.y.forEach((cosine, j) => rows.push([frame.view, frame.step, layer, cosine, heat.z[j][i]])));
  }
  return csv(["view", "step", "layer", "cosine", "density"], rows);
};
const chartJson = (spec) => ({
  title: spec.title,
  frames: spec.frames.map((frame) => ({ view: frame.view, step: frame.step, caption: frame.caption, traces: whole(frame.data) })),
  layout: spec.layout,
});
const tableJson = (table) => ({
  title: table.title,
  rows: rowsOf(table).map((row) => Object.fromEntries(table.columns.map((name, i) => [name, row[i]]))),
});
const inside = (things, id) => Object.entries(things).filter(([key]) => key.startsWith(`${id}-`)).map(([, thing]) => thing);
const sectionJson = (id) => ({
  ...page.sections[id],
  tables: inside(page.tables, id).map(tableJson),
  charts: inside(page.charts, id).map(chartJson),
});
const picture = (figure) => {
  library();
  const spec = page.charts[figure.id];
  const frame = frameOf(figure);
  const { data, layout } = describe(spec, frame, 1000);
  const section = page.sections[figure.closest("section")?.id];
  const words = [section?.title, spec.title, frame.caption].filter(Boolean).join(" · ");
  layout.title = { text: safe(words), font: { size: 15 }, x: 0, xref: "paper" };
  layout.margin = { ...layout.margin, t: 48 };
  const height = Math.max(spec.height, 420);
  return Plotly.downloadImage({ data, layout: { ...layout, autosize: false, width: 1000, height } },
    { format: "png", width: 1000, height, scale: 2, filename: spec.file });
};

const downloads = {
  png: (button) => picture(button.closest("figure")),
  csv: (button) => {
    const spec = page.charts[button.closest("figure").id];
    saveText(`${spec.file}.csv`, "text/csv", chartCsv(spec));
  },
  json: (button) => {
    const spec = page.charts[button.closest("figure").id];
    saveJson(spec.file, chartJson(spec));
  },
  table: (button) => {
    const table = page.tables[button.dataset.id];
    saveText(`${table.file}.csv`, "text/csv", csv(whole(table.columns), rowsOf(table)));
  },
  section: (button) => saveJson(page.sections[button.dataset.id].file, sectionJson(button.dataset.id)),
  all: () => saveJson("report", Object.keys(page.sections).map(sectionJson)),
  picture: (button) => save(button.dataset.file, button.closest("figure").querySelector("img").src),
};
const copy = async (button) => {
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
};
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.download) downloads[button.dataset.download](button);
  if ("copy" in button.dataset) copy(button);
  if (button.dataset.fold) all("main details").forEach((fold) => { fold.open = button.dataset.fold === "open"; });
});
