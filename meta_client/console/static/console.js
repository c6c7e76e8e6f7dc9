// What is live on a page: replaces its part with what the server sends, keeps focus, scroll positions and open details,
// and draws the charts. Nothing here decides anything.
"use strict";
(() => {
  const part = document.getElementById("part");
  const state = document.getElementById("live-state");
  const toggle = document.getElementById("live-toggle");
  const POINTS_MAX = 1800;
  const COLOURS = 8;
  const SECONDS_MIN = 60; // of a chart
  let paused = false;

  const say = (text) => { if (state && state.textContent !== text) state.textContent = text; };

  const nameOf = (element) =>
    element.id ? "#" + element.id : element.getAttribute("href") ? "href:" + element.getAttribute("href")
      : element.getAttribute("aria-label") ? "label:" + element.getAttribute("aria-label") : null;
  const named = (name) => [...part.querySelectorAll("a[href], button, input, select, code, details, [aria-label]")]
    .filter((element) => nameOf(element) === name);
  // A name, and which of those with it.
  const placeOf = (element) => [nameOf(element), named(nameOf(element)).indexOf(element)];
  const find = ([name, number]) => (name ? named(name)[number] : undefined);

  const isBusy = () => {
    const selection = document.getSelection();
    const focus = document.activeElement;
    return (selection && !selection.isCollapsed && part.contains(selection.anchorNode))
      || (focus && part.contains(focus) && /^(INPUT|SELECT|TEXTAREA)$/.test(focus.tagName));
  };

  const replace = (html) => {
    if (isBusy()) return; // somebody selects or types: the next one will do
    const focus = part.contains(document.activeElement) ? placeOf(document.activeElement) : null;
    const scrolled = [...part.querySelectorAll(".scroll")].map((box) => [placeOf(box), box.scrollLeft]);
    const opened = [...part.querySelectorAll("details[open][id]")].map((one) => one.id);
    const fresh = new DOMParser().parseFromString(html, "text/html").body;
    // A chart is drawn in the page, which keeps its points.
    for (const old of part.querySelectorAll("[data-chart]")) {
      const place = fresh.querySelector(`[data-chart="${CSS.escape(old.dataset.chart)}"]`);
      if (place) place.replaceWith(old);
    }
    part.replaceChildren(...fresh.childNodes);
    for (const id of opened) { const one = document.getElementById(id); if (one) one.open = true; }
    for (const [place, left] of scrolled) { const box = find(place); if (box) box.scrollLeft = left; }
    const again = focus && find(focus);
    if (again) again.focus({ preventScroll: true });
    if (window.htmx) window.htmx.process(part);
  };

  const charts = new Map();
  const colour = (number) => `hsl(${(210 + number * 137) % 360} 70% ${matchMedia("(prefers-color-scheme: dark)").matches ? 68 : 40}%)`;
  const size = (bytes) => {
    if (bytes === null || bytes === undefined) return "unknown";
    let left = bytes, unit = 0;
    while (left >= 1024 && unit < 4) { left /= 1024; unit += 1; }
    return `${unit && left < 100 ? left.toFixed(1) : left.toFixed(0)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
  };

  const draw = (sample) => {
    const place = part.querySelector(`[data-chart="${CSS.escape(sample.chart)}"]`);
    if (!place || !window.uPlot) return;
    let chart = charts.get(sample.chart);
    if (!chart) {
      const names = Object.keys(sample.values).slice(0, COLOURS);
      const style = getComputedStyle(document.documentElement);
      const axis = { stroke: style.getPropertyValue("--dim").trim(), grid: { stroke: style.getPropertyValue("--line").trim(), width: 1 }, ticks: { show: false } };
      const width = () => Math.max(place.clientWidth - 14, 200);
      const plot = new window.uPlot({
        width: width(), height: 200, cursor: { y: false }, scales: {
          x: { range: (u) => { const at = u.data[0]; return at.length ? [at[0], Math.max(at[at.length - 1], at[0] + SECONDS_MIN)] : [0, SECONDS_MIN]; } },
          y: { range: (u, low, high) => [0, Math.max(high * 1.1, 1)] },
        },
        axes: [axis, { ...axis, size: 70, values: (u, ticks) => ticks.map(size) }],
        series: [{ label: "time" }, ...names.map((name, number) => ({ label: name, stroke: colour(number), width: 1.5, value: (u, value, series, at) => (at === null ? "" : size(value)) }))],
      }, [[], ...names.map(() => [])], place);
      new ResizeObserver(() => plot.setSize({ width: width(), height: 200 })).observe(place);
      chart = { plot, names, data: [[], ...names.map(() => [])] };
      charts.set(sample.chart, chart);
    }
    chart.data[0].push(sample.time);
    chart.names.forEach((name, number) => chart.data[number + 1].push(sample.values[name] ?? null));
    if (chart.data[0].length > POINTS_MAX) for (const column of chart.data) column.shift();
    chart.plot.setData(chart.data);
  };

  const follow = (place) => {
    const source = new EventSource(place);
    source.addEventListener("open", () => say(paused ? "paused" : "live"));
    source.addEventListener("page", (event) => { if (!paused) { replace(event.data); say("live"); } });
    source.addEventListener("sample", (event) => draw(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      say(source.readyState === EventSource.CLOSED ? "not live: reload to see what is new" : "not live: the console does not answer");
    });
  };

  if (part && part.dataset.live) follow(part.dataset.live);
  if (toggle) toggle.addEventListener("click", () => {
    paused = !paused;
    toggle.setAttribute("aria-pressed", String(paused));
    say(paused ? "paused" : "live");
  });
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      document.getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
})();
