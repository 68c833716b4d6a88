// Asks the server that this page came from how far the runs are that train now, and whether there is anything new.
const block = byId("now");
const showNow = (runs) => {
  block.hidden = !runs.length;
  byId("now-runs").replaceChildren(...runs.map(({ run, step, steps, words }) => {
    const item = document.createElement("li");
    const bar = Object.assign(document.createElement("progress"), { value: step, max: steps, ariaLabel: `Progress of ${run}` });
    const name = Object.assign(document.createElement("strong"), { textContent: run });
    item.append(name, `: ${words}`, bar);
    return item;
  }));
  const shades = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
  const dashes = ["solid", "dash", "dot", "dashdot"];
  const line = (run, number, name, mode, words) => ({
    type: "scatter", mode, name: safe(`${run.run}: ${words}`), x: run.lines[name][0], y: run.lines[name][1],
    line: { color: shades[number % shades.length], dash: dashes[number % dashes.length], width: 1.6 }, marker: { size: 7 },
    hovertemplate: "step %{x:,}<br>%{y:.4f}<extra></extra>",
  });
  const data = runs.flatMap((run, number) => [
    line(run, number, "task_loss", "lines", "training"), line(run, number, "held_out", "markers", "held out")]);
  const rows = data.flatMap((trace) => trace.x.map((step, i) => [trace.name, step, trace.y[i]]));
  const columns = ["run", "step", "loss"];
  page.charts["now-p0-c0"] = {
    title: "Loss so far", file: "now", height: 340, columns: null,
    table: { title: "Loss so far", columns, data: columns.map((_, i) => rows.map((row) => row[i])) },
    frames: [{ view: "", step: null, caption: "", data }],
    layout: { margin: { l: 56, r: 16, t: 12, b: 48 }, xaxis: { title: { text: "step" } }, showlegend: true,
      yaxis: { title: { text: "loss, nats per token" } } },
  };
  if (runs.length) redraw("now-p0");
};
const look = async () => {
  try {
    const { stamp, runs } = await (await fetch("now")).json();
    if (stamp !== document.documentElement.dataset.stamp) location.reload();
    else showNow(runs);
  } catch { /* the server has ended: the page stays */ }
};
look();
setInterval(look, 3000);
