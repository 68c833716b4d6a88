// Any two runs or models, and their difference at every layer.
const safe = (words) => words.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll("%{", "%\u200b{");
const signed = (value) => (Math.abs(value) < 5e-5 ? "" : value < 0 ? "\u2212" : "+") + Math.abs(value).toFixed(4);

// States before the final norm, at their share of the depth, and that after it by itself.
const body = (curve) => (curve.normed ? curve.cosine.slice(0, -1) : curve.cosine);
const readAt = (curve, share) => {
  const values = body(curve);
  const place = share * (curve.cosine.length - 1);
  const low = Math.floor(place + 1e-9);
  const rest = Math.max(0, place - low);
  if (low > values.length - 1 || (rest > 1e-9 && low + 1 > values.length - 1)) return null;
  if (rest <= 1e-9) return values[low];
  return values[low] === null || values[low + 1] === null ? null : (1 - rest) * values[low] + rest * values[low + 1];
};
const minus = (a, b) => (a === null || b === null ? null : a - b);
const compareTwo = (a, b) => {
  const depth = a.cosine.length - 1;
  const rows = body(a).map((value, layer) => [layer, value, readAt(b, layer / depth)]);
  if (a.normed && b.normed) rows.push([depth, a.cosine[depth], b.cosine[b.cosine.length - 1]]);
  return rows.map(([layer, first, second]) => [layer, first, second, minus(first, second)]);
};

const selects = ["compare-a", "compare-b"].map(byId);
const curves = whole(page.depths).flatMap(([, some]) => some.map(whole));
const showCompared = () => {
  const [a, b] = selects.map((select) => curves[Number(select.value)]);
  const rows = compareTwo(a, b);
  const known = rows.filter((row) => row[3] !== null);
  const most = known.reduce((best, row) => (Math.abs(row[3]) > Math.abs(best[3]) ? row : best), known[0]);
  const mean = known.reduce((sum, row) => sum + row[3], 0) / known.length;
  byId("compare-words").textContent = known.length
    ? `${signed(mean)} in the mean of all layers; most at layer ${most[0]}: ${signed(most[3])}.` : "No layer of theirs can be compared.";
  const split = a.normed ? rows.length - (b.normed ? 1 : 0) : rows.length;
  const line = (column, name, colour, dash, from, to) => ({
    type: "scatter", x: rows.slice(from, to).map((row) => row[0]), y: rows.slice(from, to).map((row) => row[column]), name: safe(name),
    mode: from ? "markers" : "lines", line: { color: colour, dash, width: 2 }, marker: { color: colour, size: 8 }, showlegend: !from,
    hovertemplate: `layer %{x}<br>%{y:.4f}<extra></extra>`,
  });
  const both = (...three) => [line(...three, 0, split), line(...three, split, rows.length)].filter((trace) => trace.x.length);
  const columns = ["layer", "first", "second", "difference"];
  const chart = (title, y, data, legend) => ({
    title, file: "compared", height: 360, columns: null, table: { title, columns, data: columns.map((_, i) => rows.map((row) => row[i])) },
    frames: [{ view: "", step: null, caption: "", data }],
    layout: { margin: { l: 56, r: 16, t: 12, b: 48 }, xaxis: { title: { text: "layer of the first (0 = embedding)" } },
      yaxis: { title: { text: y }, zerolinecolor: "#808081" }, showlegend: legend },
  });
  page.charts["compare-p0-c0"] = chart("Mean cosine over depth", "mean cosine of two tokens",
    [...both(1, a.name, "#0072B2", "solid"), ...both(2, b.name, "#D55E00", "dash")], true);
  page.charts["compare-p0-c1"] = chart("Difference at every layer", "first \u2212 second", both(3, "difference", "#010101", "solid"), false);
  redraw("compare-p0");
};
if (selects[0]) {
  selects.forEach((select, chosen) => {
    let number = 0;
    for (const [title, some] of page.depths) {
      const group = document.createElement("optgroup");
      group.label = title;
      for (const curve of some) group.append(new Option(curve.name, number, number === chosen, number++ === chosen));
      select.append(group);
    }
    select.addEventListener("change", showCompared);
  });
  showCompared();
}
