// Draws the charts, those in view first, and connects the controls. The charts themselves are plotly's. The scripts
// here are parts of one function: page.py joins them.
const byId = (id) => document.getElementById(id);
const page = JSON.parse(byId("page-data").textContent);
const pool = JSON.parse(byId("page-pool").textContent);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const narrow = () => window.innerWidth < 560;
let printing = false;

// {"$": n} stands for the n-th list of the pool. Objects are copied, lists are shared.
const whole = (value) => {
  if (Array.isArray(value)) return value.map(whole);
  if (value === null || typeof value !== "object") return value;
  if ("$" in value) return pool[value.$];
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, whole(inner)]));
};

// -- colours and sizes ---------------------------------------------------------------------------------

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const PRINTED = { "--paper": "#ffffff", "--ink": "#1c1e21", "--soft": "#575c63", "--grid": "#e3e5e8" };
const themed = (name) => (printing ? PRINTED[name] : colour(name));

// stand-ins for colours of the page, see plotly.py
const recolour = (value) => {
  if (Array.isArray(value)) {
    if (value.length && typeof value[0] === "object") value.forEach(recolour); // lists of numbers are long
    return value;
  }
  if (value !== null && typeof value === "object") {
    for (const key of Object.keys(value)) value[key] = recolour(value[key]);
    return value;
  }
  if (value === "#010101") return themed("--ink");
  if (value === "#808081") return themed("--soft");
  if (value === "#fefefe") return themed("--paper");
  return value;
};

const describe = (spec, frame, width) => {
  const layout = recolour(whole(spec.layout));
  const data = recolour(whole(frame.data));
  const small = width < 480;
  layout.paper_bgcolor = themed("--paper");
  layout.plot_bgcolor = layout.plot_bgcolor || themed("--paper");
  layout.font = { family: colour("--sans"), size: small ? 11 : 12.5, color: themed("--ink") };
  layout.hoverlabel = { ...layout.hoverlabel, bgcolor: themed("--paper"), bordercolor: themed("--soft"),
    font: { family: colour("--sans"), size: 13, color: themed("--ink") } };
  layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: themed("--soft"), activecolor: themed("--ink") };
  // a finger that moves over a chart scrolls the page
  layout.dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom";
  layout.autosize = true;
  // the legend stands at the foot of the chart; below it there is nothing to collide with
  layout.legend = { ...layout.legend, orientation: "h", x: 0, y: 0, yref: "container", yanchor: "bottom", traceorder: "normal" };
  for (const key of ["xaxis", "yaxis"]) {
    const axis = layout[key] = layout[key] || {};
    axis.gridcolor = themed("--grid");
    axis.zerolinecolor = axis.zerolinecolor || themed("--grid");
    axis.linecolor = themed("--soft");
    axis.automargin = true;
    if (axis.title) axis.title.standoff = 8;
  }
  if (small) layout.margin = { ...layout.margin, l: Math.min(layout.margin.l, 44), r: 8 };
  for (const trace of data) {
    if (trace.type !== "heatmap") continue;
    if (small) trace.colorbar = { ...trace.colorbar, thickness: 9, title: { text: "" }, tickfont: { size: 10 } };
  }
  return { data, layout };
};

const options = (spec) => ({
  responsive: true,
  displaylogo: false,
  displayModeBar: narrow() ? false : "hover",
  showSendToCloud: false, // nothing leaves this page
  plotlyServerURL: "",
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  toImageButtonOptions: { format: "png", filename: spec.file, scale: 2 },
});

// -- drawing -------------------------------------------------------------------------------------------

// plotly.js takes about a second to start: the page is read and its controls work before that.
const library = () => {
  if (window.Plotly) return;
  const script = document.createElement("script");
  script.textContent = byId("plotly").textContent;
  document.head.append(script);
};

const figures = all("figure.chart");
const folded = (figure) => figure.closest("details:not([open]), [hidden]") !== null;
const state = new Map(); // panel → {view, step}
const drawn = new Set();
const stale = new Set(); // drawn, but not as the controls now say
const near = new Set(); // in view, or nearly
const wanted = new Set();

const frameOf = (figure) => {
  const frames = page.charts[figure.id].frames;
  const { view, step } = state.get(figure.dataset.panel) || {};
  const seen = frames.filter((frame) => !view || frame.view === view);
  const some = seen.length ? seen : frames;
  if (step === undefined) return some[some.length - 1];
  const upTo = some.filter((frame) => frame.step <= step);
  return upTo.length ? upTo[upTo.length - 1] : some[0];
};

const draw = (figure) => {
  library();
  const spec = page.charts[figure.id];
  const plot = figure.querySelector(".plot");
  const frame = frameOf(figure);
  const { data, layout } = describe(spec, frame, plot.clientWidth);
  const { view } = state.get(figure.dataset.panel) || {};
  const missing = view && frame.view && frame.view !== view ? ` (${view} was not measured)` : "";
  figure.querySelector(".caption").textContent = frame.caption + missing;
  drawn.add(figure);
  stale.delete(figure);
  wanted.delete(figure);
  return Plotly.react(plot, data, layout, options(spec)).then(() => {
    figure.dataset.drawn = frame.step ?? frame.view;
    all(".main-svg", plot).forEach((svg) => svg.setAttribute("aria-hidden", "true")); // loose labels; the numbers are below
  });
};

// One chart at a time; the page is painted and answers in between.
let running = false;
const next = () => {
  const [figure] = wanted;
  running = figure !== undefined;
  if (!running) return;
  draw(figure);
  requestAnimationFrame(() => setTimeout(next));
};
const want = (figure) => {
  wanted.add(figure);
  if (!running) {
    running = true;
    setTimeout(next);
  }
};

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) {
      near.delete(target);
      wanted.delete(target);
    } else {
      near.add(target);
      if (!drawn.has(target) || stale.has(target)) want(target);
    }
  }
}, { rootMargin: "300px 0px" });
figures.forEach((figure) => watcher.observe(figure));

const redraw = (panel) => {
  for (const figure of drawn) {
    if (panel && figure.dataset.panel !== panel) continue;
    stale.add(figure);
    if (near.has(figure)) want(figure);
  }
  drawRest();
};

// What is out of view is drawn while there is nothing else to do, so that a picture or a copy of the whole page is
// complete; what is folded is drawn when it is unfolded.
const whenIdle = window.requestIdleCallback || ((then) => setTimeout(then, 50));
let resting = false; // until the page has been shown
const drawRest = () => {
  if (!resting) return;
  resting = false;
  const one = () => {
    const figure = figures.find((f) => (!drawn.has(f) || stale.has(f)) && !folded(f));
    resting = figure === undefined;
    if (resting) return;
    if (!running) draw(figure);
    whenIdle(one);
  };
  whenIdle(one);
};
document.addEventListener("toggle", drawRest, true);

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
let wasNarrow = narrow();
let waiting;
window.addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    if (narrow() !== wasNarrow) redraw();
    wasNarrow = narrow();
  }, 200);
});
let unfolded = [];
window.addEventListener("beforeprint", () => {
  printing = true;
  unfolded = all("main details:not([open], .numbers, .config)");
  unfolded.forEach((fold) => { fold.open = true; });
  figures.filter((figure) => !figure.closest("[hidden]")).forEach(draw);
});
window.addEventListener("afterprint", () => {
  printing = false;
  unfolded.forEach((fold) => { fold.open = false; });
  redraw();
});
setTimeout(() => {
  resting = true;
  drawRest();
}, 500);

// -- controls ------------------------------------------------------------------------------------------

const change = (panel, part) => {
  state.set(panel, { ...state.get(panel), ...part });
  redraw(panel);
};
for (const radio of all("input[type=radio][data-panel]")) {
  radio.addEventListener("change", () => { if (radio.checked) change(radio.dataset.panel, { view: radio.value }); });
  if (radio.checked) state.set(radio.dataset.panel, { ...state.get(radio.dataset.panel), view: radio.value });
}
for (const slider of all("input[type=range][data-panel]")) {
  const steps = slider.dataset.steps.split(",").map(Number);
  const labels = slider.dataset.labels.split("|");
  const move = () => {
    const at = Number(slider.value);
    slider.setAttribute("aria-valuetext", labels[at]);
    slider.parentElement.querySelector("output").textContent = labels[at];
    change(slider.dataset.panel, { step: steps[at] });
  };
  slider.addEventListener("input", move);
  for (const button of all(`button[data-jump][data-panel="${slider.dataset.panel}"]`)) {
    button.addEventListener("click", () => {
      slider.value = button.dataset.jump === "first" ? slider.min : slider.max;
      move();
    });
  }
  state.set(slider.dataset.panel, { ...state.get(slider.dataset.panel), step: steps[Number(slider.value)] });
}

const contents = byId("contents");
if (!matchMedia("(min-width: 80rem)").matches) contents.open = false;
